"""What the transport under the picker costs by itself."""
