package platform

import "agentsvc/transport/edge"

func (p *Platform) sessionRoutes(*edge.Table) {}

// Sessions are the console sessions that a node knows.
type Sessions struct{}
