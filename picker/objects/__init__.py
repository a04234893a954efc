"""What operators say about models and priorities, in the API objects of the llm-d picker."""
