package toolbox

import (
	"context"
	"errors"
	"testing"

	"agentsvc/schemas/agent"
	"agentsvc/schemas/id"
	"agentsvc/schemas/testkit"
	"agentsvc/schemas/tool"
	fair "agentsvc/schemas/turn"
)

// Decisions on many tools that a route asks for wait for the tenant's turn, and end with the caller.
func TestDecisionsTakeTurns(t *testing.T) {
	t.Parallel()
	w := newShops(t)
	w.shop("aa", []string{"read"}, []string{"read"})
	w.box.Judging = fair.New(2, 1)
	if err := w.box.Judging.Take(t.Context(), w.caller.Tenant); err != nil {
		t.Fatal(err)
	}
	other := id.TenantID{UUID: id.NewAnywhere()}
	for what, ask := range map[string]func(context.Context, id.TenantID) error{
		"verdicts": func(ctx context.Context, tenant id.TenantID) error {
			_, err := w.box.Verdicts(ctx, tenant, w.caller.Agent, []tool.Spec{{Source: tool.MCP, Owner: "aa", Name: "read"}})
			return err
		},
		"known": func(ctx context.Context, tenant id.TenantID) error {
			_, err := w.box.Known(ctx, tenant, []string{"aa.read"})
			return err
		},
		"offered": func(ctx context.Context, tenant id.TenantID) error {
			_, err := w.box.Offered(ctx, tenant, w.caller.Agent)
			return err
		},
		"explained": func(ctx context.Context, tenant id.TenantID) error {
			_, err := w.box.Explain(ctx, tenant, w.caller.Agent, "aa.read")
			return err
		},
	} {
		ctx, leave := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- ask(ctx, w.caller.Tenant) }()
		testkit.Eventually(t, what+" waits", w.box.Judging.Wanted)
		if err := ask(t.Context(), other); errors.Is(err, context.Canceled) {
			t.Errorf("%s of another tenant: %v", what, err)
		}
		leave()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("%s of a caller that left: %v", what, err)
		}
	}
	w.box.Judging.Give(w.caller.Tenant)
	m := &agent.Manifest{}
	ctx, leave := context.WithCancel(t.Context())
	leave()
	if _, err := tool.Verdicts(ctx, &tool.Access{}, m, make([]tool.Spec, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("verdicts of a caller that left: %v", err)
	}
	if got, err := w.box.Verdicts(t.Context(), w.caller.Tenant, w.caller.Agent, []tool.Spec{{Source: tool.MCP, Owner: "aa", Name: "read"}}); err != nil || len(got) != 1 {
		t.Errorf("%v, %v", got, err)
	}
}
