package tool

import "agentsvc/schemas/id"

// Usable returns the connection of a server for calls under a grant with this pin: the pinned
// one, or without a pin the one on the agent's nearest org node, else a tenant-wide one. It
// returns nil if none fits or the one that fits has no credential.
func Usable(a *Access, s *Server, pin *id.ConnectionID) *id.ConnectionID {
	r := &resolver{access: a}
	if c := r.connection(&owner{server: s}, &Grant{Connection: pin}); c != nil && !c.Empty {
		return &c.ID
	}
	return nil
}
