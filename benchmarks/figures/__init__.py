"""Makes figures from samples: ratios, aims, tables, plots and the page. Measures nothing."""
