"""How the processes talk: messages over sockets, bytes in shared arenas. Knows no model and no HTTP."""
