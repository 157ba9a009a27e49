"""Figures from samples: ratios, aims, tables, plots and the page. Pure: measures nothing."""
