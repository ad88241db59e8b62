package sync

import (
	"context"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/turn"
)

// slice is how long a sync keeps its place while others wait for one.
const slice = time.Minute

// place is the place of one sync.
type place struct {
	places *turn.Places
	tenant id.TenantID
	held   bool
}

func (p *place) take(ctx context.Context) error {
	waiting.Inc()
	err := p.places.Take(ctx, p.tenant)
	waiting.Dec()
	if err != nil {
		return err
	}
	p.held = true
	running.Inc()
	return nil
}

func (p *place) give() {
	if p.held {
		p.held = false
		running.Dec()
		p.places.Give(p.tenant)
	}
}
