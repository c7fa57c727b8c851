"""OpenAI's formats: requests are read by tables of fields, replies are written in their shapes."""
