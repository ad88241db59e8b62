package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	webhookEndpoints = 10
	webhookBacklog   = 20000
	webhookEvents    = 1000
)

// sink is a receiver of webhooks. It answers 200 after a pause, or never where the
// pause is negative.
type sink struct {
	url   string
	pause time.Duration

	mu   sync.Mutex               // guards late
	late map[string]time.Duration // by event: from the event's time to its first arrival
	n    int                      // arrivals
}

func newSink(pause time.Duration) (*sink, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &sink{url: "http://" + l.Addr().String() + "/", pause: pause, late: map[string]time.Duration{}}
	go http.Serve(l, s)
	return s, nil
}

func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	now := time.Now()
	if s.pause < 0 {
		<-r.Context().Done()
		return
	}
	var event struct {
		ID        string    `json:"id"`
		CreatedAt time.Time `json:"created_at"`
	}
	if body, err := io.ReadAll(r.Body); err != nil || json.Unmarshal(body, &event) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	s.n++
	if _, ok := s.late[event.ID]; !ok {
		s.late[event.ID] = now.Sub(event.CreatedAt)
	}
	s.mu.Unlock()
	time.Sleep(s.pause)
}

// heard is how many different events have arrived, and how late each.
func (s *sink) heard() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	late := make([]time.Duration, 0, len(s.late))
	for _, d := range s.late {
		late = append(late, d)
	}
	return late
}

// subscribe adds an endpoint at a sink for the types named.
func (b *bed) subscribe(s *sink, types ...string) (endpoint string, err error) {
	var made struct{ ID string }
	err = b.call("POST", "/v1/webhooks", map[string]any{"url": s.url, "events": types}, &made)
	return made.ID, err
}

// benchWebhooks measures how fast a backlog leaves, and how late the events of
// runs arrive where others of the tenant's endpoints are dead or slow.
func benchWebhooks(ctx context.Context, b *bed) error {
	if err := b.serve(ctx, simulated, "SVC_OUTBOUND_ALLOW=127.0.0.0/8"); err != nil {
		return err
	}
	rate, err := b.drainWebhooks(ctx)
	if err != nil {
		return err
	}
	return b.healthyWebhooks(ctx, rate)
}

// drainWebhooks puts a backlog into the database and answers how many deliveries a
// second were made of it, from its commit to the commit of the last result.
func (b *bed) drainWebhooks(ctx context.Context) (perSecond float64, err error) {
	var sinks [webhookEndpoints]*sink
	var endpoints [webhookEndpoints]string
	for i := range sinks {
		if sinks[i], err = newSink(0); err != nil {
			return 0, err
		}
		if endpoints[i], err = b.subscribe(sinks[i], "webhook.test"); err != nil {
			return 0, err
		}
	}
	c, err := pgx.Connect(ctx, b.dsn("svc"))
	if err != nil {
		return 0, err
	}
	defer c.Close(ctx)
	if _, err := c.Exec(ctx, `
		INSERT INTO webhook_deliveries (tenant_id, id, webhook_id, event_id, type, body, next_attempt_at, created_at)
		SELECT $1, new_id(now()), w.id, e.id, 'run.completed', convert_to(json_build_object('id', e.id, 'type', 'run.completed',
		       'data', json_build_object('text', repeat('x', 400)), 'created_at', now())::text, 'UTF8'), now(), now()
		FROM (SELECT new_id(now()) AS id FROM generate_series(1, $3)) e CROSS JOIN unnest($2::uuid[]) AS w (id)`,
		b.tenant, endpoints[:], webhookBacklog/webhookEndpoints); err != nil {
		return 0, fmt.Errorf("put a backlog there: %w", err)
	}
	start := time.Now()
	if err := poll(ctx, time.Minute, "the backlog", func() bool {
		return b.none(ctx, `SELECT count(*) FROM webhook_deliveries WHERE status = 'pending'`)
	}); err != nil {
		return 0, err
	}
	took := time.Since(start)
	arrived := 0
	for _, s := range sinks {
		arrived += s.n
	}
	if arrived != webhookBacklog || !b.none(ctx, `SELECT count(*) FROM webhook_deliveries WHERE status <> 'succeeded' OR attempts <> 1`) {
		return 0, fmt.Errorf("%d of %d deliveries arrived, or not at the first attempt", arrived, webhookBacklog)
	}
	perSecond = webhookBacklog / took.Seconds()
	fmt.Printf("  a backlog of %d deliveries to %d endpoints left in %v: %.0f/s (budget: at least 2,000)\n", webhookBacklog, webhookEndpoints, took.Round(time.Millisecond), perSecond)
	for _, endpoint := range endpoints {
		if err := b.call("PATCH", "/v1/webhooks/"+endpoint, map[string]any{"enabled": false}, nil); err != nil {
			return 0, err
		}
	}
	return perSecond, nil
}

// healthyWebhooks ends runs at half the rate at which deliveries can leave, for
// ten endpoints of which one never answers and one takes its time.
func (b *bed) healthyWebhooks(ctx context.Context, perSecond float64) error {
	var sinks [webhookEndpoints]*sink
	for i := range sinks {
		pause := time.Duration(0)
		switch i {
		case 0:
			pause = -1
		case 1:
			pause = 2 * time.Second
		}
		var err error
		if sinks[i], err = newSink(pause); err != nil {
			return err
		}
		if _, err = b.subscribe(sinks[i], "run.completed"); err != nil {
			return err
		}
	}
	pace := time.Duration(float64(time.Second) * webhookEndpoints / (perSecond / 2))
	tick := time.NewTicker(pace)
	defer tick.Stop()
	slots := make(chan struct{}, clients)
	var wg sync.WaitGroup
	var mu sync.Mutex // guards failed
	var failed error
	start := time.Now()
	for range webhookEvents {
		<-tick.C
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := b.call("POST", "/v1/agents/"+b.agent+"/runs", map[string]any{"input": "hello"}, nil); err != nil {
				mu.Lock()
				failed = err
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if failed != nil {
		return failed
	}
	offered := webhookEvents * webhookEndpoints / time.Since(start).Seconds()
	if err := poll(ctx, time.Minute, "the healthy endpoints", func() bool {
		for _, s := range sinks[2:] {
			if len(s.heard()) < webhookEvents {
				return false
			}
		}
		return true
	}); err != nil {
		return err
	}
	var late []time.Duration
	for _, s := range sinks[2:] {
		late = append(late, s.heard()...)
	}
	fmt.Printf("  %d events to %d endpoints, one dead and one slow, %.0f deliveries/s offered: the healthy ones hear p50 %v p99 %v after the event (budget: p99 2 s)\n",
		webhookEvents, webhookEndpoints, offered, quantile(late, .5).Round(time.Millisecond), quantile(late, .99).Round(time.Millisecond))
	return nil
}
