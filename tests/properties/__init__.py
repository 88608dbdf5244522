"""Random walks over the whole queue, checked step by step against a pure model, on every engine."""
