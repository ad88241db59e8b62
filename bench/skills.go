package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	skillRuns    = 4  // at a time, which is what a node performs
	besideRate   = 50 // ordinary runs a second
	besideRuns   = 600
	besideRounds = 3
)

// benchSkills compares ordinary runs without and with four runs of browser skills under way all the time, each of
// which fills a form twice, waits for an approval, and commits.
func benchSkills(ctx context.Context, b *bed) error {
	if err := b.serve(ctx, simulated, "SVC_OUTBOUND_ALLOW=127.0.0.0/8"); err != nil {
		return err
	}
	s := newShop()
	defer s.server.Close()
	var of []*clerk
	for i := range 2 { // a tenant has half of a node's sessions
		t, err := b.another(ctx, fmt.Sprintf("skills-%d", i))
		if err != nil {
			return err
		}
		for range skillRuns / 2 {
			c, err := newClerk(t, s, len(of))
			if err != nil {
				return err
			}
			of = append(of, c)
		}
	}
	threads, err := b.threads(100)
	if err != nil {
		return err
	}
	if _, err := b.paced(ctx, threads, 2*len(threads), besideRate); err != nil { // a thread's first message reads it
		return err
	}
	for _, c := range of { // the browser is started
		if err := c.run(); err != nil {
			return err
		}
	}
	var all [2][]time.Duration
	var tails, medians []float64
	for round := range besideRounds {
		var took [2][]time.Duration
		for _, with := range []int{round % 2, 1 - round%2} {
			measure := func() (err error) {
				took[with], err = b.paced(ctx, threads, besideRuns, besideRate)
				return err
			}
			began, done, err := time.Now(), int64(0), error(nil)
			if with == 1 {
				done, err = besideClerks(of, measure)
			} else {
				err = measure()
			}
			if err != nil {
				return err
			}
			fmt.Printf("  %d skill runs at a time (%.1f ended a second): p50 %v p99 %v\n", with*skillRuns, float64(done)/time.Since(began).Seconds(), quantile(took[with], .5), quantile(took[with], .99))
			all[with] = append(all[with], took[with]...)
		}
		tails = append(tails, float64(quantile(took[1], .99))/float64(quantile(took[0], .99)))
		medians = append(medians, float64(quantile(took[1], .5))/float64(quantile(took[0], .5)))
	}
	if posts, orders := s.posts.Load(), s.orders.Load(); posts != orders {
		return fmt.Errorf("%d orders were cancelled by %d posts", orders, posts)
	}
	fmt.Printf("  %d runs/s beside %d skill runs against without, medians of %d rounds: p50 %.2f, p99 %.2f (budget: at most 1.5); p99 of all rounds together %.2f\n", besideRate, skillRuns, besideRounds,
		median(medians), median(tails), float64(quantile(all[1], .99))/float64(quantile(all[0], .99)))
	return nil
}

// besideClerks calls during while each clerk performs one skill run after the other. It returns how many ended.
func besideClerks(of []*clerk, during func() error) (int64, error) {
	var done atomic.Int64
	var failed atomic.Pointer[error]
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for _, c := range of {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := c.run(); err != nil {
					failed.Store(&err)
					return
				}
				done.Add(1)
			}
		})
	}
	err := during()
	n := done.Load()
	close(stop)
	wg.Wait()
	if f := failed.Load(); f != nil {
		err = errors.Join(err, *f)
	}
	return n, err
}

// shop is a site on which orders are cancelled by hand.
type shop struct {
	server        *httptest.Server
	orders, posts atomic.Int64
}

func newShop() *shop {
	s := &shop{}
	m := http.NewServeMux()
	page := func(w http.ResponseWriter, body string, args ...any) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprintf(w, "<!doctype html><title>Shop</title><h1>Shop</h1>"+body, args...)
	}
	m.HandleFunc("GET /orders/{id}", func(w http.ResponseWriter, r *http.Request) {
		id, err := strconv.Atoi(r.PathValue("id"))
		if err != nil {
			http.NotFound(w, r)
			return
		}
		page(w, `<p>Order %d</p><form method=post action=/orders/%d/cancel><label>Reason <select id=reason name=reason><option value=stock>Out of stock<option value=asked>The customer asked</select></label>
<label>Note <input id=note name=note></label><button id=confirm>Cancel the order</button></form>`, id, id)
	})
	m.HandleFunc("POST /orders/{id}/cancel", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		s.posts.Add(1)
		page(w, "<p id=status>cancelled</p>")
	})
	s.server = httptest.NewServer(m)
	return s
}

// clerk is an agent that cancels orders by a browser skill, with the person who approves that.
type clerk struct {
	*bed
	shop         *shop
	slug, thread string
}

func newClerk(b *bed, s *shop, n int) (*clerk, error) {
	definition := strings.NewReplacer("URL", s.server.URL, "HOST", strings.TrimPrefix(s.server.URL, "http://")).Replace(`{
 "start_url": "URL/orders/1", "target_hosts": ["HOST"],
 "params": [{"name":"order","type":"integer","required":true,"allow_in_url":true},{"name":"reason_code","type":"enum","enum":["stock","asked"],"required":true},{"name":"note","type":"string","required":true}],
 "steps": [{"id":"open","kind":"navigate","value":"URL/orders/{{order}}"},
  {"id":"reason","kind":"select","target":{"selector":"#reason"},"param":"reason_code"},
  {"id":"note","kind":"type","target":{"selector":"#note"},"param":"note"},
  {"id":"commit","kind":"click","target":{"selector":"#confirm"}}],
 "commit_step_id": "commit", "assertions": [{"kind":"element_text","selector":"#status","value":"cancelled","match":"equals"}]}`)
	c := &clerk{bed: b, shop: s, slug: fmt.Sprintf("cancel-%d", n)}
	var made struct{ Skill struct{ ID string } }
	if err := b.call("POST", "/v1/browser-skills", map[string]any{"name": c.slug, "slug": c.slug, "definition": json.RawMessage(definition), "owner_attested": true}, &made); err != nil {
		return nil, err
	}
	if err := b.call("POST", "/v1/browser-skills/"+made.Skill.ID+"/grants", map[string]any{"agent_id": b.agent, "ops": []string{"run"}}, nil); err != nil {
		return nil, err
	}
	var err error
	c.thread, err = b.thread()
	return c, err
}

// run cancels one order, from the message to the end of the agent's run.
func (c *clerk) run() error {
	order := c.shop.orders.Add(1)
	run, err := c.post(c.thread, fmt.Sprintf(`/call browser_skill:%s.run {"order":%d,"reason_code":"asked","note":"as told","reason":"measured"}`, c.slug, order))
	if err != nil {
		return err
	}
	event, end := "", ""
	err = c.follow(run, "", func(line []byte) bool {
		switch {
		case bytes.HasPrefix(line, []byte("event: ")):
			event = string(line[len("event: "):])
		case event == "approval.required" && bytes.HasPrefix(line, []byte("data: ")):
			var a struct {
				ID string `json:"approval_id"`
			}
			if err := json.Unmarshal(line[len("data: "):], &a); err != nil {
				end = err.Error()
				return false
			}
			go func() {
				_ = c.call("POST", "/v1/approvals/"+a.ID+"/decision", map[string]any{"action": "approve"}, nil)
			}()
		case strings.HasPrefix(event, "tool.result") && bytes.HasPrefix(line, []byte("data: ")) && !bytes.Contains(line, []byte(`"ok":true`)):
			end = string(line)
		}
		return event != "run.completed" && event != "run.failed"
	})
	if err == nil && (event != "run.completed" || end != "") {
		err = fmt.Errorf("the run %s of order %d: %s %s", run, order, event, end)
	}
	return err
}
