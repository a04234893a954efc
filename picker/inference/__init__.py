"""What is asked: the API surfaces, the model, the prompt."""
