package toolbox

import "agentsvc/schemas/id"

// What the toolbox remembers of changes that others make (platform.Tools).

// ForgetAccess implements platform.Tools: a call whose receipt is being committed
// reads anew what decides on it. Those of all tenants do; there are few.
func (b *Toolbox) ForgetAccess(id.TenantID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.ahead)
}

// ForgetAll implements platform.Tools. Lists of tools grant nothing, and a
// credential is opened for each call; but servers are asked anew what they offer.
func (b *Toolbox) ForgetAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.ahead)
	clear(b.down)
	b.Gateway.ForgetAll()
}
