package platform

import "agentsvc/transport/edge"

func (p *Platform) userRoutes(*edge.Table) {}

func (p *Platform) nodeRoutes(*edge.Table) {}
