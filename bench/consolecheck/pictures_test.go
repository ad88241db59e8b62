package consolecheck

import (
	"bytes"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/playwright-community/playwright-go"
)

// shopOf fills a tenant with what a small shop would have, and returns the pages to look at.
func shopOf(t *testing.T, s *service) (email string, stops []stop) {
	t.Helper()
	s.call(t, "PATCH", "/v1/agents/"+s.agent, object{"emoji": "", "name": "Order desk"}, nil) // the machine that takes the pictures may have no such font
	agent := func(name, description, instructions string, policies ...object) string {
		var made struct{ Agent struct{ ID string } }
		s.call(t, "POST", "/v1/agents", object{"name": name, "description": description, "manifest": object{"model": object{"provider": "simulated", "name": "sim-1"}, "instructions": instructions,
			"tools": object{"mcp": []object{{"server": "demo"}}}}}, &made)
		s.call(t, "POST", "/v1/agents/"+made.Agent.ID+"/versions/1/publish", nil, nil)
		for _, p := range policies {
			p["agent_id"] = made.Agent.ID
			s.call(t, "POST", "/v1/approval-policies", p, nil)
		}
		return made.Agent.ID
	}
	refunds := agent("Refund clerk", "Pays back what arrived broken.", "You refund orders of customers who say what is wrong. Ask for the order's number. Never promise a refund before it was decided.",
		policy("high", "name", "Refunds are decided by people", "required_approvals", 2))
	small := agent("Returns", "Takes parcels back.", "Help with returns.", policy("medium", "name", "Small refunds"))
	writer := agent("Complaint writer", "Answers complaints.", "Answer kindly and briefly.")

	say := func(of, title string, texts ...string) (thread string, runs []string) {
		var made struct{ ID string }
		s.call(t, "POST", "/v1/threads", object{"agent_id": of, "title": title}, &made)
		for _, text := range texts {
			var said struct {
				RunID string `json:"run_id"`
			}
			s.call(t, "POST", "/v1/threads/"+made.ID+"/messages", object{"content": text}, &said)
			until(t, "run "+said.RunID+" goes on", func() bool {
				var got struct{ Run struct{ Status string } }
				s.call(t, "GET", "/v1/runs/"+said.RunID, nil, &got)
				return got.Run.Status != "queued" && got.Run.Status != "running"
			})
			runs = append(runs, said.RunID)
		}
		return made.ID, runs
	}
	for i, of := range []string{s.agent, small, writer, s.agent, refunds} {
		say(of, "Morning", fmt.Sprintf("/call demo.orders.get {\"order_id\":\"%d\"}\n/say Order %d left the warehouse.", 1001+i%3, 1001+i%3))
	}
	thread, _ := say(s.agent, "Where is order 1001?", "/call demo.orders.get {\"order_id\":\"1001\"}\n/say Your order **left the warehouse** this morning:\n/say - carrier: [Parcel Post](https://parcels.example/1001)\n/say - due tomorrow", "/say You can send it back within 30 days.")
	_, bad := say(s.agent, "Order 1002", "/think The customer asks for an order. I look it up.\n/call demo.orders.get {\"order_id\":\"1002\"}\n/fail The provider is overloaded.")
	say(writer, "Letter", "/say Dear Kim, we are sorry about the cup.")
	waits := s.refund(t, refunds, 129.9, "the kettle arrived broken")
	s.refund(t, refunds, 48, "wrong size, sent back on Monday")
	for i, reason := range []string{"arrived late", "one glove is missing", "paid twice"} {
		s.refund(t, small, 12.5+float64(i)*7, reason)
	}
	done := s.refund(t, small, 9.9, "scratched")
	s.call(t, "POST", "/v1/approvals/"+done.ID+"/decision", object{"action": "approve"}, nil)

	flow := s.workflow(t, "Complaints about orders", complaints(writer))
	s.call(t, "POST", "/v1/workflows/"+flow+"/versions/1/publish", nil, nil)
	var on struct {
		RunID string `json:"run_id"`
	}
	s.call(t, "POST", "/v1/workflows/"+flow+"/test-run", object{"input": object{"text": "It arrived broken.", "amount": 80}}, &on)
	s.reaches(t, on.RunID, "waiting_approval")

	schedule := s.trigger(t, writer, object{"name": "Morning report", "kind": "schedule", "schedule": object{"cron": "0 8 * * 1-5", "timezone": "Europe/Berlin"}, "input": object{"text": "What came in since yesterday?"}})
	s.trigger(t, s.agent, object{"name": "Returned parcels", "kind": "hook"})
	s.call(t, "POST", "/v1/triggers/"+schedule.ID+"/fire", nil, nil)

	to := newReceiver(t)
	hook := s.hook(t, to.url, "run.completed", "run.failed", "approval.requested")
	to.broken.Store(true)
	var tested struct {
		DeliveryID string `json:"delivery_id"`
	}
	s.call(t, "POST", "/v1/webhooks/"+hook+"/test", nil, &tested)
	until(t, "an attempt has failed", func() bool { return to.attempts(tested.DeliveryID) > 0 })

	base := s.base(t, "Returns and repairs", "description", "How customers send things back, and what we repair.", "embedding", object{"provider": "simulated", "model": "small"})
	doc := s.document(t, base, "returns.md", "# Returns\n\nShoes may be sent back within 30 days. Boots may be sent back within 60 days, if they were not worn outside.\n", "ready")
	s.document(t, base, "repairs.txt", "We repair shoes for two years. Soles are replaced once for free.", "ready")
	s.document(t, base, "prices.pdf", noDocument, "failed")
	s.call(t, "PUT", "/v1/knowledge-bases/"+base+"/documents/"+doc+"/acls", object{"items": []object{{"principal": "group", "name": "staff"}, {"principal": "public"}}}, nil)

	var key embedKey
	s.call(t, "POST", "/v1/embed-keys", object{"agent_id": s.agent, "name": "Web shop", "allowed_origins": []string{"https://shop.example.com"}, "theme": object{"accent": "#0f766e"},
		"config": object{"title": "Order desk", "greeting": "Hello! What may I do for you?", "starter_prompts": []string{"Where is my order?", "Return an item"}, "disclaimer": "Answers are made by a machine."}}, &key)
	for _, origin := range []string{"https://www.example.com", "https://staging.example.com", "https://staging.example.com"} {
		s.config(t, key.Key, origin)
	}
	robin := s.customer(t, s.agent, object{"sub": "customer-1042", "name": "Robin Example", "email": "robin@example.com", "meta": object{"groups": []string{"gold", "beta testers"}, "plan": "pro", "seats": 12}}, "Where is my order 1001?", "Can I return the blue one?")
	s.call(t, "PATCH", "/v1/end-users/"+robin, object{"tags": []string{"vip", "berlin"}, "residency": "eu"}, nil)
	s.customer(t, s.agent, object{"sub": "customer-1043", "name": "Sam Example", "email": "sam@example.com"})

	d := newDesk(t)
	skill := s.skill(t, d, "File a complaint")
	var ran struct{ Run struct{ ID string } }
	s.call(t, "POST", "/v1/browser-skills/"+skill+"/dry-run", object{"params": object{"order": "1001", "cause": "Broken"}}, &ran)
	for _, n := range []string{"Shop", "Office", "Warehouse"} {
		s.call(t, "POST", "/v1/org-nodes", object{"name": n}, nil)
	}
	s.call(t, "POST", "/v1/api-keys", object{"name": "Back end"}, nil)
	email = s.person(t, "admin")
	s.person(t, "member")
	return email, []stop{
		{"home", "", "Home"},
		{"approvals", "approvals", "Approvals"},
		{"approval", "approvals/" + waits.ID, "Approvals"},
		{"playground", "playground?agent=" + s.agent + "&thread=" + thread, "Playground"},
		{"runs", "runs", "Runs"},
		{"run-failed", "runs/" + bad[0], "Run " + short(bad[0])},
		{"run-waiting", "runs/" + waits.RunID, "Run " + short(waits.RunID)},
		{"thread", "threads/" + thread, "Where is order 1001?"},
		{"agents", "agents", "Agents"},
		{"agent", "agents/" + refunds, "Refund clerk"},
		{"workflow", "workflows/" + flow + "?run=" + on.RunID, "Complaints about orders"},
		{"workflow-editor", "workflows/" + flow + "?tab=definition", "Complaints about orders"},
		{"triggers", "triggers", "Triggers"},
		{"trigger", "triggers/" + schedule.ID, "Triggers"},
		{"tools", "tools", "Tools"},
		{"tools-access", "tools?tab=access", "Tools"},
		{"policies", "policies?agent=" + refunds + "&tool=demo.orders.refund", "Policies"},
		{"knowledge", "knowledge/" + base, "Knowledge"},
		{"knowledge-search", "knowledge/" + base + "?tab=search&q=send+shoes+back", "Knowledge"},
		{"skill", "skills/" + skill, "Browser skills"},
		{"skill-run", "skills/" + skill + "?tab=runs&run=" + ran.Run.ID, "Browser skills"},
		{"webhook", "webhooks/" + hook + "?delivery=" + tested.DeliveryID, "Webhooks"},
		{"embed", "embed/" + key.ID, "Embed"},
		{"end-users", "end-users", "End users"},
		{"end-user", "end-users/" + robin, "End users"},
		{"usage", "usage", "Usage"},
		{"audit", "audit", "Audit"},
		{"settings", "settings?tab=members", "Settings"},
		{"settings-org", "settings?tab=org", "Settings"},
		{"api", "api?op=runAgent", "API"},
	}
}

// stop is a page of which there is a picture in both themes and on a phone.
type stop struct{ picture, path, heading string }

// TestPictures takes the pictures of the documentation, of every page, into the folder of -pictures.
func TestPictures(t *testing.T) {
	if *pictures == "" {
		return
	}
	s := own(t, "SVC_SKILL_STEP_TIMEOUT=60s") // a busy machine takes them too
	email, stops := shopOf(t, s)
	for name, l := range map[string]look{"light": {width: 1280, height: 800}, "dark": {width: 1280, height: 800, dark: true}, "phone": {width: 390, height: 780}} {
		t.Run(name, func(t *testing.T) {
			v := visit(t, s, l)
			p := v.tab()
			p.goTo("/console/login")
			p.heading("Sign in")
			p.picture("console-login-" + name)
			must(t, p.Close())
			p = v.signedIn(email, "/console/")
			p.month()
			p.day()
			for _, at := range stops {
				p.goTo("/console/" + at.path)
				p.heading(at.heading)
				must(t, expect.Locator(p.Locator("[aria-busy=true]:not([role=log])")).ToHaveCount(0))
				until(t, "the pictures are there", func() bool {
					n, err := p.Evaluate("[...document.querySelectorAll('main img')].filter((i) => !i.complete && i.getBoundingClientRect().top < innerHeight).length")
					return err == nil && n == 0
				})
				p.accessible(at.path + " in " + name)
				p.narrow(at.path)
				p.picture("console-" + at.picture + "-" + name)
			}
		})
	}
}

// day makes the 24 hours of Home up: a service of this test has no past.
func (p *tab) day() {
	hour := time.Now().UTC().Truncate(time.Hour)
	must(p.t, p.Route(regexp.MustCompile(`/v1/stats\?.*step=hour`), func(r playwright.Route) {
		var items []object
		for i := range 24 {
			items = append(items, object{"at": hour.Add(time.Duration(i-23) * time.Hour).Format(time.RFC3339), "runs": object{"succeeded": 40 + (i*i*7)%90, "failed": []int{0, 2, 0, 5, 1}[i%5], "cancelled": i % 3},
				"duration_ms": nil, "first_token_ms": nil, "decision_s": nil, "approvals": object{"requested": i % 4, "decided": i % 3, "expired": 0}, "deliveries": object{"succeeded": 0, "failed": 0}, "tokens_in": 1, "tokens_out": 1, "cost_usd": 0})
		}
		body, err := json.Marshal(object{"items": items})
		if err == nil {
			_ = r.Fulfill(playwright.RouteFulfillOptions{ContentType: playwright.String("application/json"), Body: body})
		}
	}))
}

// palette encodes a picture with its 256 commonest colours: a page has few, and the file is a third as large.
func palette(shot []byte) ([]byte, error) {
	full, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		return nil, err
	}
	at := full.Bounds()
	count := map[color.RGBA]int{}
	rgba := image.NewRGBA(at)
	draw.Draw(rgba, at, full, at.Min, draw.Src)
	for y := at.Min.Y; y < at.Max.Y; y++ {
		for x := at.Min.X; x < at.Max.X; x++ {
			count[rgba.RGBAAt(x, y)]++
		}
	}
	common := slices.SortedFunc(maps.Keys(count), func(a, b color.RGBA) int { return count[b] - count[a] })
	var colors color.Palette
	for _, c := range common[:min(256, len(common))] {
		colors = append(colors, c)
	}
	index := map[color.RGBA]uint8{}
	for _, c := range common {
		index[c] = uint8(colors.Index(c))
	}
	small := image.NewPaletted(at, colors)
	for y := at.Min.Y; y < at.Max.Y; y++ {
		for x := at.Min.X; x < at.Max.X; x++ {
			small.SetColorIndex(x, y, index[rgba.RGBAAt(x, y)])
		}
	}
	var out bytes.Buffer
	err = (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, small)
	return out.Bytes(), err
}
