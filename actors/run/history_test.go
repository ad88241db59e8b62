package run

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"agentsvc/persistence/engine"
	"agentsvc/schemas/id"
	"agentsvc/schemas/model"
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
