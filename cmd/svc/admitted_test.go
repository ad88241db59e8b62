package main

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"
	"testing"

	"agentsvc/persistence/journal"
	"agentsvc/persistence/journal/journaltest"
	"agentsvc/persistence/pgtest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
	"agentsvc/transport/edge"
)

// onceOnly accepts a caller at the beginning of a request, and not again.
type onceOnly struct {
	tenant id.TenantID
	again  atomic.Int32
}

func (o *onceOnly) Authenticate(_ context.Context, c edge.Credentials) (edge.Identity, error) {
	if c.Again {
		o.again.Add(1)
		return edge.Identity{}, problem.New(problem.CodeUnauthorized, "")
	}
	return edge.Identity{Tenant: o.tenant, Role: lifecycle.RoleAdmin, Principal: "apikey:x"}, nil
}

// New work waits for its turn, and its key may be revoked meanwhile: it is authenticated once more, and holds no ticket.
func TestNewWorkIsAuthenticatedAgainInItsTurn(t *testing.T) {
	db := pgtest.New(t)
	auth := &onceOnly{tenant: pgtest.Tenant(t, db.Admin(t))}
	a := admitted{writer: journaltest.Writer(t, db, journal.Config{})}
	table := edge.NewTable()
	edge.Handle(table, edge.Route{Method: "POST", Path: "/post", ID: "post", Summary: "Post", Role: lifecycle.RoleMember},
		func(ctx context.Context, c *edge.Caller, _ *struct{}) (*edge.Empty, error) {
			if _, err := a.admit(ctx, c.Tenant); err == nil {
				t.Error("it was admitted")
			} else {
				return nil, err
			}
			return nil, nil
		})
	server, err := edge.NewServer(edge.Config{Table: table, Auth: auth})
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
		if err := server.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		<-served
	})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+ln.Addr().String()+"/post", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer k")
	req.Header.Set("X-Tenant-Id", auth.tenant.String())
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized || auth.again.Load() != 1 {
		t.Errorf("%s, authenticated again %d times", resp.Status, auth.again.Load())
	}
	release, err := a.admit(t.Context(), auth.tenant) // work of no request
	if err != nil {
		t.Fatal(err)
	}
	release()
}
