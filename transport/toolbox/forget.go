package toolbox

import "agentsvc/schemas/id"

// What the toolbox remembers of changes that others make (platform.Tools).

// ForgetAccess implements platform.Tools. It has nothing to do: every plan and every call
// reads the grants and policies from the tables.
func (b *Toolbox) ForgetAccess(id.TenantID) {}

// ForgetAll implements platform.Tools. Lists of tools grant nothing, and a
// credential is opened for each call; but servers are asked anew what they offer.
func (b *Toolbox) ForgetAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.down)
	b.Gateway.ForgetAll()
}
