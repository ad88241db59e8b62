package platform

import "agentsvc/transport/edge"

func (p *Platform) approvalRoutes(*edge.Table) {}
