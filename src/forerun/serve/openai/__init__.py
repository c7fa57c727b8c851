"""OpenAI's words: requests read by tables of fields, replies in their shapes."""
