package platform

import "agentsvc/transport/edge"

func (p *Platform) serverRoutes(*edge.Table) {}

func (p *Platform) connectionRoutes(*edge.Table) {}
