package widgetcheck

import (
	"testing"
	"time"
)

// guide returns the agent of svc dev that answers from the guides, once they are indexed.
func (s *service) guide(t *testing.T) string {
	t.Helper()
	var agents struct{ Items []struct{ ID, Slug string } }
	s.call(t, "GET", "/v1/agents", nil, &agents)
	var bases struct{ Items []struct{ ID string } }
	s.call(t, "GET", "/v1/knowledge-bases", nil, &bases)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); ; <-tick.C {
		var documents struct{ Items []struct{ Status string } }
		s.call(t, "GET", "/v1/knowledge-bases/"+bases.Items[0].ID+"/documents", nil, &documents)
		ready := 0
		for _, d := range documents.Items {
			if d.Status == "ready" {
				ready++
			}
		}
		if ready > 0 && ready == len(documents.Items) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d of %d guides are indexed", ready, len(documents.Items))
		}
	}
	for _, a := range agents.Items {
		if a.Slug == "guide" {
			return a.ID
		}
	}
	t.Fatal("there is no agent guide")
	return ""
}

// The documents that an answer cites stand under it, where the key shows sources, also after a reload. Marks are never shown.
func TestSourcesStandUnderAnAnswer(t *testing.T) {
	t.Parallel()
	agent := shared.guide(t)
	for name, shows := range map[string]bool{"shown": true, "not shown": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, options{key: object{"agent_id": agent, "config": object{"show_sources": shows}}})
			p := b.visit(b.shop())
			p.open()
			p.say("/call kb.search {\"query\":\"verify the signature of a webhook\"}\n/cite Compare the signature.")
			p.finished(1)
			sources := p.panel().Locator(".turn.bot .note")
			for range 2 {
				p.must(expect.Locator(p.answers()).ToHaveText([]string{"Compare the signature."}))
				if shows {
					p.must(expect.Locator(sources).ToHaveCount(1))
					p.must(expect.Locator(sources).ToContainText(".md"))
				} else {
					p.must(expect.Locator(sources).ToHaveCount(0))
				}
				_, err := p.Reload()
				p.must(err)
			}
		})
	}
}
