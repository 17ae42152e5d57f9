"""Translates lines of text: their sentences, the words kept as they are, markup; shares batches among workers."""
