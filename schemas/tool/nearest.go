package tool

import "agentsvc/schemas/id"

// Nearest is the credential of a server for calls whose grant pins none: the
// connection on the agent's nearest org node, else a tenant-wide one; nil where
// none fits.
func Nearest(a *Access, s *Server) *id.ConnectionID {
	r := &resolver{access: a}
	if c := r.connection(&owner{server: s}, &Grant{}); c != nil {
		return &c.ID
	}
	return nil
}
