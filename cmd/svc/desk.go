package main

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"time"

	"agentsvc/transport/mcp/demo"
)

// sampleServer is the slug of the tool server that svc dev brings along.
const sampleServer = "demo"

// loopback is what a first look may reach beside public addresses.
var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

// desk is the demo tool server of svc dev: an order desk in memory, with a token
// and a port that are new at each start.
type desk struct {
	url, token string
	server     *http.Server
	done       chan error
}

func openDesk() (*desk, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	d := &desk{url: "http://" + l.Addr().String() + "/mcp", token: rand.Text(), done: make(chan error, 1)}
	d.server = &http.Server{Handler: demo.New(d.token).Handler(), ReadHeaderTimeout: 10 * time.Second}
	go func() { d.done <- d.server.Serve(l) }()
	return d, nil
}

func (d *desk) close() {
	_ = d.server.Close() // nobody is left to be served
	<-d.done
}

// tools registers the desk as the tenant's tool server, with its present address
// and token: every tool is granted, and a refund needs an approval.
func (s *sample) tools(ctx context.Context, api *client, d *desk) error {
	credentials := map[string]any{"token": d.token}
	if s.ConnectionID != "" {
		err := errors.Join(
			api.call(ctx, http.MethodPatch, "/v1/mcp-servers/"+s.ServerID, map[string]any{"endpoint": d.url}, nil),
			api.call(ctx, http.MethodPatch, "/v1/connections/"+s.ConnectionID, map[string]any{"credentials": credentials}, nil))
		var gone *apiError
		if errors.As(err, &gone) && gone.Status == http.StatusNotFound {
			return nil // somebody removed it: it stays removed
		}
		return err
	}
	var server, connection struct{ ID string }
	if err := api.call(ctx, http.MethodPost, "/v1/mcp-servers", map[string]any{
		"slug": sampleServer, "name": "Order desk (demo)", "transport": "http", "endpoint": d.url, "auth_kind": "bearer"}, &server); err != nil {
		return err
	}
	if err := api.call(ctx, http.MethodPost, "/v1/connections", map[string]any{
		"mcp_server_id": server.ID, "name": "Demo token", "credentials": credentials, "credential_meta": map[string]any{"label": "made by svc dev"}}, &connection); err != nil {
		return err
	}
	if err := api.call(ctx, http.MethodPost, "/v1/tool-grants", map[string]any{
		"source": "mcp", "mcp_server_id": server.ID, "tool_pattern": "orders.*", "effect": "allow"}, nil); err != nil {
		return err
	}
	if err := api.call(ctx, http.MethodPost, "/v1/approval-policies", map[string]any{
		"name": "Refunds are decided by people", "tool_pattern": sampleServer + ".orders.refund", "risk": "high"}, nil); err != nil {
		return err
	}
	s.ServerID, s.ConnectionID = server.ID, connection.ID
	return nil
}
