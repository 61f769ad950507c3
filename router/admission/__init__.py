"""Lets requests in: priced in tokens and engine time, in fair order, or refused before it hurts."""
