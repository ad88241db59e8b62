package blackbox

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"
)

// fed is a frame of a feed.
type fed struct {
	Type   string
	ID     string
	Kind   string
	Status string
	Topics []string
}

// feed opens a feed and returns its frames after feed.ready; the channel is closed when the stream ends.
func (c *caller) feed(t *testing.T, ctx context.Context, query string) <-chan fed {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.Base+"/v1/feed"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+c.Key)
	req.Header.Set("X-Tenant-Id", c.Tenant)
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil || resp.StatusCode != 200 {
		t.Fatal(err, resp.StatusCode)
	}
	frames := make(chan fed, 1000)
	go func() {
		defer close(frames)
		defer resp.Body.Close()
		for in := bufio.NewScanner(resp.Body); in.Scan(); {
			data, ok := strings.CutPrefix(in.Text(), "data: ")
			var f fed
			if ok && json.Unmarshal([]byte(data), &f) == nil && f.Type != "heartbeat" {
				frames <- f
			}
		}
	}()
	if f := <-frames; f.Type != "feed.ready" {
		t.Fatalf("the first frame is %+v", f)
	}
	return frames
}

// until reads a feed up to a frame that fits.
func until(t *testing.T, ctx context.Context, frames <-chan fed, what string, fits func(fed) bool) {
	t.Helper()
	for {
		select {
		case f, open := <-frames:
			if !open {
				t.Fatalf("the feed ended before %s", what)
			}
			if fits(f) {
				return
			}
		case <-ctx.Done():
			t.Fatalf("the feed never had %s", what)
		}
	}
}

// A run is in the feed as it begins and ends; what the overview and the stats say after the frame
// counts it. A resource is in the feed, and the feed ends with its key.
func TestFeedOverviewAndStats(t *testing.T) {
	t.Parallel()
	c := sharedNode(t).tenant("feed")
	ctx := within(t, 30*time.Second)
	agent := c.publish(t, "Fed", simulatedModel)
	var key struct{ ID, Secret string }
	c.ask(t, ctx, 201, "POST", "/v1/api-keys", object{"name": "feed"}, &key)
	reader := *c
	reader.Key = key.Secret
	frames := reader.feed(t, ctx, "")
	runs := reader.feed(t, ctx, "?topics=runs")
	run := c.runOnce(t, ctx, agent, "hello")
	for name, f := range map[string]<-chan fed{"all": frames, "runs": runs} {
		until(t, ctx, f, name+": the end of the run", func(f fed) bool { return f.Type == "run.changed" && f.ID == run && f.Status == "succeeded" })
	}
	var overview struct {
		Runs struct {
			Succeeded int `json:"succeeded_24h"`
		}
		Deliveries *struct{ Pending int }
	}
	c.ask(t, ctx, 200, "GET", "/v1/overview", nil, &overview)
	if overview.Runs.Succeeded != 1 || overview.Deliveries == nil {
		t.Errorf("%+v", overview)
	}
	var stats struct {
		Items []struct {
			Runs         struct{ Succeeded int }
			DurationMS   *struct{ P50, P95 float64 } `json:"duration_ms"`
			FirstTokenMS *struct{ P50, P95 float64 } `json:"first_token_ms"`
			TokensIn     int                         `json:"tokens_in"`
		}
	}
	c.ask(t, ctx, 200, "GET", "/v1/stats?agent_id="+agent, nil, &stats)
	if len(stats.Items) < 24 {
		t.Fatalf("%d items", len(stats.Items))
	}
	last := stats.Items[len(stats.Items)-1]
	if last.Runs.Succeeded == 0 { // the hour may have turned since the run ended
		last = stats.Items[len(stats.Items)-2]
	}
	if last.Runs.Succeeded != 1 || last.DurationMS == nil || last.FirstTokenMS == nil || last.TokensIn == 0 {
		t.Errorf("%+v", stats.Items[len(stats.Items)-2:])
	}
	c.publish(t, "Another", simulatedModel)
	until(t, ctx, frames, "the agent", func(f fed) bool { return f.Type == "resource.changed" && f.Kind == "agent" })
	c.ask(t, ctx, 204, "DELETE", "/v1/api-keys/"+key.ID, nil, nil)
	for _, f := range []<-chan fed{frames, runs} {
		for range f { // ends
		}
	}
	if ctx.Err() != nil {
		t.Error("the feed did not end with its key")
	}
}

// What nodes write by the way is in the feed too, once it can be read: origins that an embed key
// refuses, end users who sign in, the health of tool servers, the last firing of a hook.
func TestTheFeedNamesWhatIsNoted(t *testing.T) {
	t.Parallel()
	c := sharedNode(t).tenant("noted")
	ctx := within(t, 30*time.Second)
	agent := c.publish(t, "Noted", simulatedModel)
	k := c.embedKey(t, ctx, agent, "noted")
	var server, hook struct{ ID string }
	c.ask(t, ctx, 201, "POST", "/v1/mcp-servers", object{"slug": "gone", "name": "Gone", "transport": "http", "endpoint": "http://127.0.0.1:1/mcp", "auth_kind": "none"}, &server)
	c.ask(t, ctx, 201, "POST", "/v1/triggers", object{"name": "Hook", "kind": "hook", "target": object{"agent_id": agent}}, &hook)
	frames := c.feed(t, ctx, "?topics=resources")
	changed := func(kind, id string, shows func() bool) {
		t.Helper()
		until(t, ctx, frames, "a change of "+kind+" "+id, func(f fed) bool { return f.Type == "resource.changed" && f.Kind == kind && f.ID == id && shows() })
	}

	bare := *c
	bare.Key, bare.Tenant = "", ""
	if a, err := bare.do(ctx, "GET", "/v1/embed/config", nil, "X-Svc-Embed-Key", k.Key, "Origin", "https://elsewhere.example"); err != nil || a.status != 403 {
		t.Fatalf("%v %s", err, a)
	}
	changed("embed_key", k.ID, func() bool {
		var denied struct{ Items []struct{ Origin string } }
		c.ask(t, ctx, 200, "GET", "/v1/embed-keys/"+k.ID+"/denied-origins", nil, &denied)
		return len(denied.Items) == 1 && denied.Items[0].Origin == "https://elsewhere.example"
	})
	person := c.visit(t, ctx, k.Key, k.IdentitySecret, "kim").EndUserID
	changed("end_user", person, func() bool { return true })

	if a, err := c.do(ctx, "POST", "/v1/mcp-servers/"+server.ID+"/test", object{}); err != nil || a.status < 400 {
		t.Fatalf("%v %s", err, a)
	}
	changed("mcp_server", server.ID, func() bool {
		var s struct{ Health struct{ State string } }
		c.ask(t, ctx, 200, "GET", "/v1/mcp-servers/"+server.ID, nil, &s)
		return s.Health.State == "failing"
	})
	c.ask(t, ctx, 202, "POST", "/v1/triggers/"+hook.ID+"/fire", object{}, nil)
	changed("trigger", hook.ID, func() bool { return c.shown(t, ctx, hook.ID).LastFiredAt != nil })
}
