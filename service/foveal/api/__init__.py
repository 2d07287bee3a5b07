"""HTTP: routes, bodies, answers, errors, health, metrics. The only folder with FastAPI; knows no picture format."""
