package workflow

import (
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"agentsvc/persistence/engine"
	"agentsvc/schemas/flow"
	"agentsvc/schemas/id"
	"agentsvc/schemas/turn"
)

// However many walks of one tenant wait for the CPUs, quick ones or those of definitions that were made
// to be expensive, a walk of another tenant waits for one of them.
func TestTenantsTakeTurnsToWalk(t *testing.T) {
	t.Parallel()
	var costly []string
	for i := range 40 {
		costly = append(costly, fmt.Sprintf(`{"id": "n%d", "type": "condition", "expression": "input.all(a, input.all(b, a == b))"}`, i))
	}
	cpus := runtime.GOMAXPROCS(0)
	for name, c := range map[string]struct {
		nodes  string
		lane   func(*kind) *turn.Places
		places int
	}{
		"quick":     {`{"id": "s", "type": "set", "values": {"x": 1}}`, func(k *kind) *turn.Places { return k.quick }, cpus},
		"not quick": {strings.Join(costly, ","), func(k *kind) *turn.Places { return k.slow }, max(1, cpus/2)},
	} {
		plan, err := flow.Load(json.RawMessage(`{"nodes": [` + c.nodes + `]}`))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Test(t, func(t *testing.T) {
			k := newKind(Config{Store: engine.New(nil)})
			lane, busy, quiet := c.lane(k), id.TenantID{UUID: id.NewAnywhere()}, id.TenantID{UUID: id.NewAnywhere()}
			for range c.places {
				if !lane.Try(busy) {
					t.Fatalf("%s: a place is missing", name)
				}
			}
			var mu sync.Mutex // guards the field below
			var walked []id.TenantID
			var wg sync.WaitGroup
			walk := func(of id.TenantID) {
				s := &State{Tenant: of, ID: id.RunID{UUID: id.NewAnywhere()}, Plan: plan, Input: json.RawMessage(`[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]`)}
				wg.Go(func() {
					if m, ok := k.walk(t.Context(), Walk{Of: s, Queue: []End{{Node: starts}}}).(Walked); !ok || !m.Flow.Done() {
						t.Errorf("%s: a walk does not end", name)
					}
					mu.Lock()
					defer mu.Unlock()
					walked = append(walked, of)
				})
			}
			const many = 6
			for range many {
				walk(busy)
			}
			synctest.Wait()
			walk(quiet)
			synctest.Wait()
			if len(walked) > 0 {
				t.Fatalf("%s: it walks without a place", name)
			}
			lane.Give(busy) // one walks at a time
			wg.Wait()
			if at := slices.Index(walked, quiet); at > many/2 {
				t.Errorf("%s: %d walks of one tenant go before that of another", name, at)
			}
		})
	}
}
