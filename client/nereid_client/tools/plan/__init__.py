"""`nereid plan`: how many replicas a model needs for more requests than it has today."""
