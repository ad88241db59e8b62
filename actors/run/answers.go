package run

import (
	"context"
	"sync"

	"agentsvc/schemas/id"
)

// answers keeps the places that large answers of tools and models have on the node until the answers are
// committed: they cannot pile up faster than they are written.
type answers struct {
	mu   sync.Mutex // guards held
	held map[id.RunID]map[int]func()
}

// keep keeps the place of a step's answer. ctx is that of the effect: if it has ended, the answer
// is dropped, and nothing more comes of the step. A step has one place.
func (a *answers) keep(ctx context.Context, run id.RunID, idx int, give func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	steps := a.held[run]
	if ctx.Err() != nil || steps[idx] != nil {
		give()
		return
	}
	if steps == nil {
		steps = map[int]func(){}
		a.held[run] = steps
	}
	steps[idx] = give
}

// committed gives the places of the steps back that have ended.
func (a *answers) committed(run id.RunID, facts []any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	steps := a.held[run]
	if steps == nil {
		return
	}
	for _, f := range facts {
		if ended, ok := f.(StepEnded); ok && steps[ended.Idx] != nil {
			steps[ended.Idx]()
			delete(steps, ended.Idx)
		}
	}
	if len(steps) == 0 {
		delete(a.held, run)
	}
}

// forget gives the places of a run back whose activation has ended.
func (a *answers) forget(run id.RunID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, give := range a.held[run] {
		give()
	}
	delete(a.held, run)
}
