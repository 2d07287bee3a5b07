"""foveal's Python SDK: images in, vision-encoder embeddings out, from a foveal server.

from foveal_client import Client

with Client() as client:
    embedding = client.encode("cat.jpg")
    embedding.values, embedding.grid_thw
"""

from foveal_client._client import AsyncClient, Client
from foveal_client._errors import (
    APIStatusError,
    AspectRatio,
    BadBase64,
    ConnectionFailed,
    ConnectionLost,
    ConnectTimeout,
    DeadlineExceeded,
    Draining,
    DtypeOverflow,
    FovealError,
    InternalError,
    InvalidEnvironment,
    InvalidRequest,
    InvalidResponse,
    MethodNotAllowed,
    ModelNotFound,
    NotFound,
    Overloaded,
    RateLimited,
    ServerDeadlineExceeded,
    TooLarge,
    Unauthorized,
    Unavailable,
    Undecodable,
    UnsupportedType,
    UrlFailed,
    UrlForbidden,
)
from foveal_client._handover import InvalidEmbedding, validate_embedding
from foveal_client._images import ImageInput
from foveal_client._messages import vllm_messages, vllm_messages_async
from foveal_client._types import (
    DType,
    Embedding,
    EncodeKeywords,
    EncodeOptions,
    GridTHW,
    Held,
    Level,
    OutputKind,
    Oversize,
    ServerInfo,
    Usage,
)
from foveal_client._vllm import vllm_inputs

__all__ = [
    "APIStatusError",
    "AspectRatio",
    "AsyncClient",
    "BadBase64",
    "Client",
    "ConnectTimeout",
    "ConnectionFailed",
    "ConnectionLost",
    "DType",
    "DeadlineExceeded",
    "Draining",
    "DtypeOverflow",
    "Embedding",
    "EncodeKeywords",
    "EncodeOptions",
    "FovealError",
    "GridTHW",
    "Held",
    "ImageInput",
    "InternalError",
    "InvalidEmbedding",
    "InvalidEnvironment",
    "InvalidRequest",
    "InvalidResponse",
    "Level",
    "MethodNotAllowed",
    "ModelNotFound",
    "NotFound",
    "OutputKind",
    "Overloaded",
    "Oversize",
    "RateLimited",
    "ServerDeadlineExceeded",
    "ServerInfo",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "Undecodable",
    "UnsupportedType",
    "UrlFailed",
    "UrlForbidden",
    "Usage",
    "validate_embedding",
    "vllm_inputs",
    "vllm_messages",
    "vllm_messages_async",
]
