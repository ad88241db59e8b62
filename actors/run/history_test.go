package run

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"weak"

	"agentsvc/persistence/engine"
	"agentsvc/schemas/id"
	"agentsvc/schemas/model"
	"agentsvc/schemas/tool"
	"agentsvc/schemas/turn"
)

// sizes is a Store whose thread and steps have these sizes.
type sizes struct {
	Store
	thread, said int64
	rooms        []int64 // of the reads that got something
}

func (s *sizes) Messages(_ context.Context, _ id.TenantID, _ id.ThreadID, upTo int64, _ int, room int64) ([]engine.Message, int64, error) {
	if s.thread <= room || room == maxThread {
		s.rooms = append(s.rooms, room)
	}
	return []engine.Message{{Seq: upTo, Role: "user", Content: "x"}}, s.thread, nil
}

func (s *sizes) Sealed(_ context.Context, _ id.TenantID, _ id.RunID, _ int, room int64) ([]engine.Sealed, int64, error) {
	if s.said <= room {
		s.rooms = append(s.rooms, room)
	}
	return nil, s.said, nil
}

// What large requests take of a node is bounded, and a tenant has a part of it. Nothing large is
// read before it has its places.
func TestLargeRequestsHaveAPartOfTheNode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &sizes{thread: 1 << 40, said: maxHistory - maxThread}
		k := &kind{cfg: Config{Store: store}, requests: turn.New(2*maxHistory/smallRequest, maxHistory/smallRequest)}
		s := runningRun(t, plain)
		s.ThreadSeq, s.Known, s.Steps = 9, false, 3
		ask := func(who id.TenantID, p *place) error {
			s := s
			s.Tenant = who
			*p = place{of: k.requests, tenant: who}
			_, err := k.request(t.Context(), &s, p)
			return err
		}
		var first, second, other place
		if err := ask(tenant, &first); err != nil || first.n != maxHistory/smallRequest {
			t.Fatalf("%d places, %v", first.n, err)
		}
		if len(store.rooms) != 2 {
			t.Errorf("read with room for %v", store.rooms)
		}
		store.rooms = nil
		waited := make(chan error, 1)
		go func() { waited <- ask(tenant, &second) }()
		synctest.Wait()
		if len(waited) != 0 || len(store.rooms) != 0 {
			t.Error("a second one does not wait")
		}
		if err := ask(id.TenantID{UUID: id.NewAnywhere()}, &other); err != nil {
			t.Error(err)
		}
		other.give()
		store.thread, store.said = smallRequest/2, smallRequest/2
		var small place
		if err := ask(tenant, &small); err != nil || small.n != 0 {
			t.Errorf("a small one: %d places, %v", small.n, err)
		}
		store.thread, store.said = 1<<40, maxHistory-maxThread
		first.give()
		if err := <-waited; err != nil {
			t.Error(err)
		}
		second.give()
		// A run of an earlier build may have said more.
		store.said = maxHistory + sealing*int64(s.Steps) + 1
		if err := ask(tenant, &second); !errors.Is(err, errHistory) {
			t.Errorf("over the limit: %v", err)
		}
	})
}

// A request that waits holds no tools either: what is offered is read again when it has its places.
func TestARequestThatWaitsHoldsNoTools(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tools := &largeTools{}
		k := &kind{cfg: Config{Store: &sizes{}, Tools: tools}, requests: turn.New(8, 8)}
		s := runningRun(t, handsOff)
		first := place{of: k.requests, tenant: tenant}
		if err := first.take(t.Context(), 8*smallRequest); err != nil {
			t.Fatal(err)
		}
		second := place{of: k.requests, tenant: tenant}
		answered := make(chan *model.Request, 1)
		go func() {
			req, err := k.request(t.Context(), &s, &second)
			if err != nil {
				t.Error(err)
			}
			answered <- req
		}()
		synctest.Wait()
		runtime.GC()
		if len(answered) > 0 || tools.offered != 1 || tools.last.Value() != nil {
			t.Errorf("it waits: %v; of %d offers it holds the last: %v", len(answered) == 0, tools.offered, tools.last.Value() != nil)
		}
		first.give()
		if req := <-answered; req == nil || len(req.Tools) != 1 || second.n == 0 {
			t.Errorf("%d places, %+v", second.n, req)
		}
		second.give()
	})
}

// largeTools offers one tool with a description of 1 MiB.
type largeTools struct {
	Tools
	offered int
	last    weak.Pointer[model.ToolSpec]
}

func (l *largeTools) Offer(context.Context, tool.Caller) ([]model.ToolSpec, error) {
	out := []model.ToolSpec{{Name: "t", Description: strings.Repeat("x", 1<<20)}}
	l.offered, l.last = l.offered+1, weak.Make(&out[0])
	return out, nil
}

// A message's size is that of its JSON.
func TestTheSizeOfAMessage(t *testing.T) {
	for _, text := range []string{"", "plain é", "<a href=\"x\">&amp;</a>\n\t\r\b\f\\", "\x01\x1f\x7f"} {
		m := model.Message{Role: model.Tool, Text: text, Results: []model.CallResult{{CallID: "c", Content: strings.Repeat(text, 3)}}}
		a, err1 := json.Marshal(m)
		b, err2 := json.Marshal(model.Message{Role: model.Tool, Text: ".", Results: []model.CallResult{{Content: "."}}})
		if got, want := m.Size(), len(a)-len(b)+2; err1 != nil || err2 != nil || got > want+len(`"text":"",`) || got < want-len(`"text":"",`) {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}
