package testkit

import (
	"context"
	"sync"

	"agentsvc/schemas/agent"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/model"
)

// Model is a model for runs. While it is held, a request waits for Release or for the end of
// its context.
type Model struct {
	// Client answers the requests, as the simulated model does.
	Client func(context.Context, *model.Request, model.Sink) (*model.Result, error)

	mu   sync.Mutex    // guards gate
	gate chan struct{} // nil: the model is not held
}

// Hold makes the requests from now on wait.
func (m *Model) Hold() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gate == nil {
		m.gate = make(chan struct{})
	}
}

// Release lets the waiting requests go on, and holds no further ones.
func (m *Model) Release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gate != nil {
		close(m.gate)
		m.gate = nil
	}
}

// Stream implements the interface that runs ask. Its answers cost nothing.
func (m *Model) Stream(ctx context.Context, _ id.TenantID, _ agent.Model, req *model.Request, sink model.Sink) (*model.Result, model.Price, error) {
	m.mu.Lock()
	gate := m.gate
	m.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return nil, model.Price{}, ctx.Err()
		}
	}
	r, err := m.Client(ctx, req, sink)
	return r, model.Price{}, err
}

// NoReaders takes the frames and the live text of runs that no client reads.
type NoReaders struct{}

func (NoReaders) PublishFunc(id.TenantID, id.RunID, int64, bool, func() []*event.Frame) {}
func (NoReaders) Abandon(id.TenantID, id.RunID)                                         {}
func (NoReaders) Begin(id.TenantID, id.RunID, int64, int, bool) model.Sink              { return NoReaders{} }
func (NoReaders) Text(string)                                                           {}
func (NoReaders) Thinking(string)                                                       {}
