"""A dump of each released schema with jobs in every state, for each engine: whatever comes later must carry them on."""
