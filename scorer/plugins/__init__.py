"""The plugins that a policy can name: those of the llm-d picker, compatible, and our own."""
