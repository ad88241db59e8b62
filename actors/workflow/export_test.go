package workflow

import "time"

// Patient returns the configuration with these limits of a quick walk and of the plan that a walk waits for: a busy machine
// reaches those of the service.
func (c Config) Patient(limit time.Duration) Config {
	c.quickWalk, c.soon = limit, limit
	return c
}
