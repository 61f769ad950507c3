"""Files that a model is to read: text, tables and PDFs turned into text."""
