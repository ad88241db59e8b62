package platform

import "agentsvc/transport/edge"

func (p *Platform) auditRoutes(*edge.Table) {}

func (p *Platform) usageRoutes(*edge.Table) {}
