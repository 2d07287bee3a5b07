"""The encoder's side of SGLang's protocol, for a language server started with `--language-only`."""
