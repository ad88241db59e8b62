package blackbox

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/transport/mcp/leak"
)

// asSession sends a client's requests with a session's cookie instead of a key.
type asSession struct {
	http.RoundTripper
	cookie string
}

func (s asSession) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Del("Authorization")
	r.Header.Del("X-Tenant-Id")
	r.Header.Set("Cookie", s.cookie)
	r.Header.Set("X-Svc-CSRF", "1")
	return s.RoundTripper.RoundTrip(r)
}

const passphrase = "correct horse battery"

// person logs in a user of the tenant. Through a trusted proxy each login has an address of its own, so
// that many scenes do not share one rate limit of logins.
func (c *caller) person(t *testing.T, ctx context.Context, email string) *caller {
	t.Helper()
	at := id.NewAnywhere()
	a := c.ask(t, ctx, 200, "POST", "/v1/auth/login", object{"email": email, "password": passphrase, "tenant_id": c.Tenant}, nil,
		"Authorization", "", "X-Tenant-Id", "", "X-Forwarded-For", fmt.Sprintf("10.%d.%d.%d", at[13], at[14], at[15]))
	cookie, _, _ := strings.Cut(a.header.Get("Set-Cookie"), ";")
	p := *c
	p.HTTP = &http.Client{Transport: asSession{c.HTTP.Transport, cookie}}
	return &p
}

// Who may see and decide each approval (service.md, Approvals; Approval policy, approver_role;
// open-parts.md, Details by area, Approvals).
func TestApprovers(t *testing.T) {
	t.Parallel()
	ctx := within(t, 60*time.Second)
	n := sharedNode(t)
	c := n.tenant("who decides")
	for email, role := range map[string]string{"member@example.com": "member", "manager@example.com": "member", "elsewhere@example.com": "member", "admin@example.com": "admin", "boss@example.com": "owner"} {
		if out, code := n.svc("user", "create", "--tenant", c.Tenant, "--email", email, "--role", role, "--password", passphrase); code != 0 {
			t.Fatal(out)
		}
	}
	var users struct{ Items []struct{ ID, Email string } }
	c.ask(t, ctx, 200, "GET", "/v1/users?limit=100", nil, &users)
	ids := map[string]string{}
	for _, u := range users.Items {
		ids[u.Email] = u.ID
	}
	company := c.makes(t, ctx, "/v1/org-nodes", object{"name": "Company"})
	team := c.makes(t, ctx, "/v1/org-nodes", object{"name": "Team", "parent_id": company})
	other := c.makes(t, ctx, "/v1/org-nodes", object{"name": "Other", "parent_id": company})
	c.ask(t, ctx, 204, "PUT", "/v1/org-nodes/"+company+"/managers/"+ids["manager@example.com"], nil, nil)
	c.ask(t, ctx, 204, "PUT", "/v1/org-nodes/"+other+"/managers/"+ids["elsewhere@example.com"], nil, nil)

	who := map[string]*caller{"a key": c}
	for name, email := range map[string]string{"a member": "member@example.com", "a manager on the chain": "manager@example.com", "a manager elsewhere": "elsewhere@example.com",
		"an admin": "admin@example.com", "an owner": "boss@example.com"} {
		who[name] = c.person(t, ctx, email)
	}

	s := c.shop(t, ctx, "none", "")
	roles := []string{"member", "manager", "admin", "owner"}
	agents := map[string]string{}
	for _, role := range roles {
		agents[role] = c.publish(t, "Asks "+role, object{"model": simulatedModel["model"], "tools": object{"mcp": []object{{"server": s.slug}}},
			"hitl": object{"rules": []object{{"tool": "orders.*", "approver_role": role, "required_approvals": 2, "risk": "high"}}}})
		c.ask(t, ctx, 200, "PATCH", "/v1/agents/"+agents[role], object{"node_id": team}, nil)
	}
	// waiting starts a run that waits for this role, and returns its approval.
	waiting := func(role string) (run, approval string) {
		t.Helper()
		run = c.runOnce(t, ctx, agents[role], `/call orders.lookup {"id":1}`)
		c.poll(t, ctx, run, "waiting_approval")
		list := who["an owner"].approvals(t, ctx, "run_id="+run)
		if len(list) != 1 || list[0].AssigneeRole != role || list[0].Policy.Kind != "manifest" {
			t.Fatalf("asked %+v", list)
		}
		return run, list[0].ID
	}
	for _, row := range []struct {
		name string
		may  []string // roles whose approvals it may see and decide
	}{
		{"a key", []string{"member", "manager", "admin"}},
		{"a member", []string{"member"}},
		{"a manager elsewhere", []string{"member"}},
		{"a manager on the chain", []string{"member", "manager"}},
		{"an admin", []string{"member", "manager", "admin"}},
		{"an owner", roles},
	} {
		var all []string
		for _, role := range roles {
			_, a := waiting(role)
			all = append(all, a)
			may := slices.Contains(row.may, role)
			get, err := who[row.name].do(ctx, "GET", "/v1/approvals/"+a, nil)
			if err != nil || may != (get.status == 200) || !may && (get.status != 403 || get.code() != "FORBIDDEN") {
				t.Errorf("%s reads what %s decides: %v %s", row.name, role, err, get)
			}
			decided, err := who[row.name].do(ctx, "POST", "/v1/approvals/"+a+"/decision", object{"action": "approve"})
			if err != nil || may != (decided.status == 200) || !may && (decided.status != 403 || decided.code() != "FORBIDDEN") {
				t.Errorf("%s decides what %s decides: %v %s", row.name, role, err, decided)
			}
			// Four eyes: the same principal counts once.
			if may {
				if again := who[row.name].refused(t, ctx, 409, a, object{"action": "approve"}); again.code() != "ALREADY_DECIDED" {
					t.Errorf("%s decides twice: %s", row.name, again)
				}
			}
		}
		var seen []string
		for _, a := range who[row.name].approvals(t, ctx, "status=pending&risk=high") {
			if slices.Contains(all, a.ID) {
				seen = append(seen, a.AssigneeRole)
			}
		}
		slices.SortFunc(seen, func(a, b string) int { return slices.Index(roles, a) - slices.Index(roles, b) })
		sameLines(t, row.name+" sees", seen, row.may)
		bulk := struct {
			Results []struct {
				ID       string
				OK       bool
				Terminal string
				Error    *struct{ Code, Detail string }
			}
		}{}
		who["an owner"].ask(t, ctx, 200, "POST", "/v1/approvals/bulk-decision", object{"ids": all, "action": "reject"}, &bulk)
		for i, r := range bulk.Results {
			switch {
			case row.name == "an owner" && (r.OK || r.Error == nil || r.Error.Code != "ALREADY_DECIDED" || r.Error.Detail == ""):
				t.Errorf("an owner rejects what the same owner has approved: %+v", r)
			case row.name != "an owner" && (!r.OK || r.Terminal != "rejected" || r.Error != nil || r.ID != all[i]):
				t.Errorf("an owner rejects: %+v", r)
			}
		}
	}

	t.Run("four eyes are two principals: a key and a person", func(t *testing.T) {
		run, a := waiting("admin")
		got := []string{c.decides(t, ctx, a, object{"action": "approve"}), who["an admin"].decides(t, ctx, a, object{"action": "approve", "feedback": "ok"})}
		sameLines(t, "decided", got, []string{"pending 1", "approved 2"})
		c.poll(t, ctx, run, "succeeded")
		ledger := c.approval(t, ctx, a).Decisions
		if len(ledger) != 2 || !strings.HasPrefix(ledger[0].Principal, "apikey:") || ledger[0].Feedback != nil || ledger[1].Principal != "user:"+ids["admin@example.com"] ||
			ledger[1].Feedback == nil || *ledger[1].Feedback != "ok" || ledger[1].Action != "approve" || ledger[0].At.After(ledger[1].At) {
			t.Errorf("ledger %+v", ledger)
		}
		audit := c.audited(t, ctx, a)
		if len(audit) != 2 || !strings.HasPrefix(audit[1], "user:"+ids["admin@example.com"]+" approval.decide ") {
			t.Errorf("audit %v", audit)
		}
	})
	t.Run("a former manager", func(t *testing.T) {
		_, a := waiting("manager")
		c.ask(t, ctx, 204, "DELETE", "/v1/org-nodes/"+company+"/managers/"+ids["manager@example.com"], nil, nil)
		if got := who["a manager on the chain"].refused(t, ctx, 403, a, object{"action": "approve"}); got.code() != "FORBIDDEN" {
			t.Errorf("%s", got)
		}
	})
	t.Run("a new role takes effect at once", func(t *testing.T) {
		_, a := waiting("admin")
		c.ask(t, ctx, 200, "PATCH", "/v1/users/"+ids["admin@example.com"], object{"role": "member"}, nil)
		if got := who["an admin"].refused(t, ctx, 403, a, object{"action": "reject"}); got.code() != "FORBIDDEN" {
			t.Errorf("%s", got)
		}
	})
	t.Run("another tenant's is 404", func(t *testing.T) {
		_, a := waiting("member")
		stranger := n.tenant("stranger to approvals")
		stranger.ask(t, ctx, 404, "GET", "/v1/approvals/"+a, nil, nil)
		stranger.refused(t, ctx, 404, a, object{"action": "approve"})
		var bulk struct {
			Results []struct {
				OK    bool
				Error *struct{ Code string }
			}
		}
		stranger.ask(t, ctx, 200, "POST", "/v1/approvals/bulk-decision", object{"ids": []string{a}, "action": "approve"}, &bulk)
		if len(bulk.Results) != 1 || bulk.Results[0].OK || bulk.Results[0].Error.Code != "NOT_FOUND" {
			t.Errorf("%+v", bulk)
		}
		if len(stranger.approvals(t, ctx, "")) != 0 {
			t.Error("another tenant sees approvals")
		}
	})
}

// Redaction: values that are secret by their key, and the connection's credential, are "[redacted]" for
// people; the model and the tool get the real value. In edited_args "[redacted]" stands for the frozen
// value at its path; anywhere else it is INVALID_ARGS.
func TestSecretsInApprovals(t *testing.T) {
	t.Parallel()
	c := sharedNode(t).tenant("secrets in approvals")
	const pass = "hunter2-for-the-customer"
	args := fmt.Sprintf(`{"id":7,"amount":1,"password":%q,"note":"key %s!"}`, pass, canary)
	const shown = `{"id":7,"amount":1,"password":"[redacted]","note":"key [redacted]!","idempotency_key":"KEY"}`
	for _, row := range []struct {
		name   string
		edit   object // nil: approve
		called string
	}{
		{"approved", nil, `{"id":7,"amount":1,"password":"` + pass + `","note":"key ` + canary + `!","idempotency_key":"KEY"}`},
		{"edited, the password kept", object{"id": 7, "amount": 2, "password": "[redacted]"}, `{"amount":2,"id":7,"password":"` + pass + `","idempotency_key":"KEY"}`},
		{"edited, another password", object{"id": 7, "amount": 2, "password": "of the editor " + pass}, `{"amount":2,"id":7,"password":"of the editor ` + pass + `","idempotency_key":"KEY"}`},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			ctx := within(t, 30*time.Second)
			s := c.shop(t, ctx, "bearer", canary)
			model, provider := modelled(t, ctx, c, "openai", asks(s.slug+"_orders_refund", args), says("done"))
			run := c.runOnce(t, ctx, c.clerk(t, provider, object{"hitl": object{"rules": []object{{"tool": "orders.refund"}}}}, s), "go")
			a := c.waits(t, ctx, run)[0]
			if got := ownKey.ReplaceAllString(string(a.RequestedAction.Args), "KEY"); got != shown {
				t.Errorf("shown %s", got)
			}
			for _, wrong := range []object{{"id": "[redacted]", "amount": 1}, {"id": 7, "amount": 1, "idempotency_key": "[redacted]"}} {
				if got := c.refused(t, ctx, 422, a.ID, object{"action": "edit", "edited_args": wrong}); got.code() != "INVALID_ARGS" || !strings.Contains(string(got.body), "redacted") {
					t.Errorf("%v: %s", wrong, got)
				}
			}
			if row.edit == nil {
				c.decides(t, ctx, a.ID, object{"action": "approve"})
			} else {
				c.decides(t, ctx, a.ID, object{"action": "edit", "edited_args": row.edit})
			}
			c.poll(t, ctx, run, "succeeded")
			called := s.called()
			if len(called) != 1 || ownKey.ReplaceAllString(called[0], "KEY") != "orders.refund "+row.called {
				t.Errorf("called %v", called)
			}
			if body := string(model.fake.Requests()[1].Body); !strings.Contains(body, pass) {
				t.Errorf("the model does not get its own arguments back: %s", body)
			}
			text := c.everything(t, ctx, run)
			if strings.Contains(text, pass) || leak.Find(canary, text) != "" {
				t.Errorf("shown: %s", text)
			}
		})
	}

	t.Run("edited, keeping a value that was redacted as the credential", func(t *testing.T) {
		t.Parallel()
		ctx := within(t, 30*time.Second)
		s := c.shop(t, ctx, "bearer", canary)
		_, provider := modelled(t, ctx, c, "openai", asks(s.slug+"_orders_refund", fmt.Sprintf(`{"id":7,"amount":1,"note":%q}`, canary)), says("done"))
		run := c.runOnce(t, ctx, c.clerk(t, provider, object{"hitl": object{"rules": []object{{"tool": "orders.refund"}}}}, s), "go")
		a := c.waits(t, ctx, run)[0]
		c.decides(t, ctx, a.ID, object{"action": "edit", "edited_args": object{"id": 7, "amount": 2, "note": "[redacted]"}})
		c.poll(t, ctx, run, "succeeded")
		if called := s.called(); len(called) != 1 || !strings.Contains(called[0], canary) {
			t.Errorf("called %v", called)
		}
		if text := c.everything(t, ctx, run); leak.Find(canary, text) != "" {
			t.Errorf("shown: %s", text)
		}
	})
	t.Run("a call that is not granted, or fails its schema, shows no credential either", func(t *testing.T) {
		t.Parallel()
		ctx := within(t, 30*time.Second)
		s := c.shop(t, ctx, "bearer", canary)
		_, provider := modelled(t, ctx, c, "openai", asks(s.slug+"_orders_refund", fmt.Sprintf(`{"id":%q,"amount":1}`, canary),
			s.slug+"_nothing", fmt.Sprintf(`{"x":%q}`, canary)), says("done"))
		run := c.runOnce(t, ctx, c.clerk(t, provider, nil, s), "go")
		c.poll(t, ctx, run, "succeeded")
		if text := c.everything(t, ctx, run); leak.Find(canary, text) != "" {
			t.Errorf("shown: %s", text)
		}
	})
	t.Run("nor does a call to another server", func(t *testing.T) {
		t.Parallel()
		ctx := within(t, 30*time.Second)
		s, open := c.shop(t, ctx, "bearer", canary), c.shop(t, ctx, "none", "")
		open.set(func(h *toolHost) {
			h.call = func(w http.ResponseWriter, _ *http.Request, m rpc) { rpcText(w, m, string(m.Params.Arguments)) }
		})
		_, provider := modelled(t, ctx, c, "openai", asks(open.slug+"_admin_delete", fmt.Sprintf(`{"x":%q}`, canary)), says("done"))
		run := c.runOnce(t, ctx, c.clerk(t, provider, nil, s, open), "go")
		c.poll(t, ctx, run, "succeeded")
		if text := c.everything(t, ctx, run); leak.Find(canary, text) != "" {
			t.Errorf("shown: %s", text)
		}
	})
}
