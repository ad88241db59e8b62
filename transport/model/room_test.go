package model

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"agentsvc/schemas/id"
	schema "agentsvc/schemas/model"
	"agentsvc/schemas/testkit"
	"agentsvc/schemas/tool"
	fair "agentsvc/schemas/turn"
	"agentsvc/transport/egress"
)

// roomRig is a provider that answers a prompt with the text of that name, and falls silent before the end if that is so.
func roomRig(t *testing.T, texts map[string]string, silent string) *Registry {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		for name, text := range texts {
			if strings.Contains(string(body), `"`+name+`"`) {
				io.WriteString(w, text)
				if name == silent {
					w.(http.Flusher).Flush()
					<-r.Context().Done()
					return
				}
			}
		}
		io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"content\":\".\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
	}))
	r := NewRegistry(Config{Guard: egress.New(egress.Config{Allow: loopback}), OpenAI: Provider{BaseURL: server.URL}})
	t.Cleanup(func() { r.Close(); server.Close() })
	return r
}

func saying(s string) string {
	return fmt.Sprintf("data: {\"choices\":[{\"delta\":{\"content\":%q}}]}\n\n", s)
}

// A turn that holds much has a place until its caller gives it back: the next one of its tenant waits, in whatever way the first
// holds it, while short turns and other tenants go on.
func TestTurnsThatHoldMuchHavePlaces(t *testing.T) {
	t.Parallel()
	const piece = 16 << 10
	call := `data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"` + strings.Repeat("x", 2*smallTurn) + `"}}]}}]}` + "\n\n"
	for name, much := range map[string]string{
		"text": strings.Repeat(saying(strings.Repeat("x", piece)), smallTurn/piece+1), "arguments": call,
		"an event without an end": strings.Repeat("data: "+strings.Repeat("x", piece)+"\n", smallTurn/piece+1), "a line without an end": ":" + strings.Repeat("x", 2*smallTurn),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := roomRig(t, map[string]string{"much": much, "long": strings.Repeat(saying(strings.Repeat("y", piece)), 2*smallTurn/piece), "short": saying("z")}, "much")
			r.rooms = rooms{fair.New(2, 1), fair.New(1, 1)}
			mine, other := fair.With(t.Context(), id.TenantID{UUID: id.NewAnywhere()}), fair.With(t.Context(), id.TenantID{UUID: id.NewAnywhere()})
			stream := func(ctx context.Context, prompt string) error {
				p, _ := r.Builtin(OpenAI)
				_, err := r.Client(p).Stream(ctx, ask(prompt), &heard{})
				return err
			}
			held, leave := context.WithCancel(mine)
			defer leave()
			var give func()
			first, second := make(chan error, 1), make(chan error, 1)
			go func() { first <- stream(tool.Keeping(held, func(f func()) { give = f }), "much") }()
			testkit.Eventually(t, "the place is taken", func() bool {
				if !r.rooms.long.Try(fair.Tenant(mine)) {
					return true
				}
				r.rooms.long.Give(fair.Tenant(mine))
				return false
			})
			go func() { second <- stream(mine, "long") }()
			testkit.Eventually(t, "the next one waits", r.rooms.long.Wanted)
			for _, err := range []error{stream(mine, "short"), stream(other, "long")} {
				if err != nil {
					t.Error(err)
				}
			}
			leave()
			begun := name == "text" || name == "arguments"
			if failed := new(schema.Error); !errors.As(<-first, &failed) || failed.Kind != schema.Cancelled {
				t.Errorf("%v", failed)
			}
			if (give != nil) != begun {
				t.Fatalf("the caller keeps a place: %v", give != nil)
			}
			if begun {
				if len(second) > 0 || !r.rooms.long.Wanted() {
					t.Error("the place is free while what was said is kept")
				}
				give()
			}
			if err := <-second; err != nil {
				t.Error(err)
			}
		})
	}
}

// One of the longest turns has a place of its own besides, and the end of a turn that waits for one is the end of its context.
func TestTheLongestTurns(t *testing.T) {
	t.Parallel()
	r := roomRig(t, map[string]string{"much": strings.Repeat(saying(strings.Repeat("x", longTurn/2)), 3)}, "")
	r.rooms = rooms{fair.New(1, 1), fair.New(1, 1)}
	mine := fair.With(t.Context(), id.TenantID{UUID: id.NewAnywhere()})
	p, _ := r.Builtin(OpenAI)
	for range 2 { // the second finds the places that the first gave back
		if _, err := r.Client(p).Stream(mine, ask("much"), &heard{}); err != nil {
			t.Fatal(err)
		}
	}
	if !r.rooms.longest.Try(fair.Tenant(mine)) {
		t.Fatal("a place is left")
	}
	late, cancel := context.WithCancel(mine)
	defer cancel()
	end := make(chan error, 1)
	go func() { _, err := r.Client(p).Stream(late, ask("much"), &heard{}); end <- err }()
	testkit.Eventually(t, "it waits", r.rooms.longest.Wanted)
	cancel()
	if failed := new(schema.Error); !errors.As(<-end, &failed) || failed.Kind != schema.Cancelled {
		t.Errorf("%v", failed)
	}
	if !r.rooms.long.Try(fair.Tenant(mine)) {
		t.Error("its other place is left")
	}
}

// What a block begins with counts as what comes later does, and once.
func TestWhatABlockBeginsWithCounts(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", maxAnswer/8)
	for name, begin := range map[string]string{
		"arguments":   `{"type":"content_block_start","index":%d,"content_block":{"type":"tool_use","id":"c","name":"f","input":{"a":"` + large + `"}}}`,
		"a signature": `{"type":"content_block_start","index":%d,"content_block":{"type":"thinking","thinking":"","signature":"` + large + `"}}`,
	} {
		tr, a := &turn{sink: &heard{}, req: ask("x")}, anthropicBlocks{}
		var err error
		n := 0
		for ; err == nil && n < maxBlocks; n++ {
			if _, err = a.event(tr, fmt.Appendf(nil, begin, n)); err == nil {
				_, err = a.event(tr, fmt.Appendf(nil, `{"type":"content_block_stop","index":%d}`, n))
			}
		}
		if !errors.Is(err, errAnswerTooLong) || n < 8 || n > 9 {
			t.Errorf("%s: %v after %d blocks", name, err, n)
		}
	}
}
