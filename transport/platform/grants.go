package platform

import "agentsvc/transport/edge"

func (p *Platform) grantRoutes(*edge.Table) {}

func (p *Platform) policyRoutes(*edge.Table) {}
