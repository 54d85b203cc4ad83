"""Tokenizers: engines, the word cache, chat templates."""
