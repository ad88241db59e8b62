package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/actors/stream"
	"agentsvc/cluster"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/transport/edge"
)

// For a client that does not read, the edge keeps frames and merges the text of
// neighbouring ones. What it merges is what is relayed: nothing that lies between
// two relayed frames gets into them.
func TestWhatTheEdgeMergesForASlowRelayReader(t *testing.T) {
	const canary = "CANARY"
	node := cluster.New(cluster.Config{Member: id.MemberID{UUID: id.NewAnywhere()}, Log: zerolog.Nop()})
	hubs := stream.New(stream.Config{Node: node, Source: openRuns{}, Heads: openRuns{}, Log: zerolog.Nop(), Watch: time.Minute})
	if err := errors.Join(node.Start(t.Context()), hubs.Start(t.Context())); err != nil {
		t.Fatal(err)
	}
	tenant, run := id.TenantID{UUID: id.NewAnywhere()}, id.RunID{UUID: id.NewAnywhere()}
	table := edge.NewTable()
	type watch struct {
		ID id.RunID `path:"id"`
	}
	edge.HandleStream(table, edge.Route{Method: "GET", Path: "/runs/{id}", ID: "watch", Summary: "watch", Tag: "test"},
		func(ctx context.Context, _ *edge.Caller, in *watch) (edge.Subscriber, error) {
			return relays{streams{hubs: hubs}}.OpenRelay(ctx, tenant, in.ID, event.Cursor{Since: -1})
		})
	server, err := edge.NewServer(edge.Config{Table: table, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := errors.Join(server.Shutdown(ctx), <-served, node.Stop(ctx)); err != nil {
			t.Error(err)
		}
		hubs.Stop()
	})

	hubs.Publish(tenant, run, event.Started(run, nil), event.StepBegan(2, 0, lifecycle.StepLLM, canary))
	said := hubs.Begin(tenant, run, 2, 0, true)
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := errors.Join(c.(*net.TCPConn).SetReadBuffer(4096), c.SetDeadline(time.Now().Add(time.Minute))); err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+ln.Addr().String()+"/runs/"+run.String(), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	if err := req.Write(c); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Text() != `data: {"type":"run.started","run_id":"`+run.String()+`","status":"running"}` {
		if !lines.Scan() {
			t.Fatal("the stream ends before run.started", lines.Err())
		}
	}

	// The client has caught up and reads no more.
	const deltas = 20_000
	var want strings.Builder
	for i := range deltas {
		if i%50 == 49 {
			said.Thinking(canary)
		}
		word := fmt.Sprint(i, " ")
		want.WriteString(word)
		said.Text(word)
	}
	args := json.RawMessage(`{"x":"` + canary + `"}`)
	hubs.Publish(tenant, run, event.StepBegan(3, 1, lifecycle.StepTool, canary), event.Called(4, 1, canary, args))
	hubs.Publish(tenant, run, event.Resulted(5, 1, true, args))
	hubs.Publish(tenant, run, event.StepBegan(6, 2, lifecycle.StepLLM, canary))
	withheld := hubs.Begin(tenant, run, 6, 2, false)
	for range deltas {
		withheld.Text(canary)
	}
	hubs.Publish(tenant, run, event.Completed(7, json.RawMessage(`{"text":"done","json":"`+canary+`"}`), 1, 2, 3))

	var got strings.Builder
	var others []string
	var at event.Pos
	frames := 0
	for lines.Scan() {
		line := lines.Text()
		if strings.Contains(line, canary) {
			t.Fatalf("the relay says %.200s", line)
		}
		if s, ok := strings.CutPrefix(line, "id: "); ok {
			pos, ok := event.ParsePos(s)
			if !ok || !at.Before(pos) {
				t.Fatalf("%s comes after %s", s, at)
			}
			at = pos
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		var f struct{ Type, Text string }
		if err := json.Unmarshal([]byte(data), &f); err != nil {
			t.Fatal(err)
		}
		switch event.Type(f.Type) {
		case event.LLMDelta:
			frames++
			got.WriteString(f.Text)
		case event.Heartbeat:
		default:
			others = append(others, data)
		}
	}
	if got.String() != want.String() {
		t.Errorf("%d bytes of text are relayed, %d were said (%v)", got.Len(), want.Len(), lines.Err())
	}
	if frames > deltas/2 {
		t.Errorf("%d frames for %d deltas, nothing was merged: void", frames, deltas)
	}
	if rest := strings.Join(others, ""); rest != `{"type":"tool.called","idx":1}{"type":"tool.result","idx":1,"ok":true}{"type":"run.completed","status":"succeeded","text":"done"}` {
		t.Errorf("besides it says %s", rest)
	}
}
