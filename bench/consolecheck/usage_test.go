package consolecheck

import (
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"testing"
	"time"

	"github.com/playwright-community/playwright-go"
)

func (p *tab) figure(caption string) playwright.Locator {
	return p.GetByRole("figure", playwright.PageGetByRoleOptions{Name: regexp.MustCompile("^" + regexp.QuoteMeta(caption))})
}

func inside(l playwright.Locator, role, name string) playwright.Locator {
	return l.GetByRole(playwright.AriaRole(role), named0(name))
}

// answered makes a call of the API give an answer of the test's.
func (p *tab) answered(pattern string, answer func(q url.Values) (int, any)) {
	p.t.Helper()
	must(p.t, p.Route(regexp.MustCompile(pattern), func(r playwright.Route) {
		u, err := url.Parse(r.Request().URL())
		if err != nil {
			return
		}
		status, out := answer(u.Query())
		body, _ := json.Marshal(out)
		kind := "application/json"
		if status >= 400 {
			kind = "application/problem+json"
		}
		_ = r.Fulfill(playwright.RouteFulfillOptions{Status: playwright.Int(status), ContentType: playwright.String(kind), Headers: map[string]string{"X-Request-Id": "req-of-the-test"}, Body: body})
	}))
}

// Section 5, Usage: totals, cost and tokens by day as figures with tables, groups, figures of
// stats; a run that ends elsewhere shows without a reload.
func TestUsage(t *testing.T) {
	t.Parallel()
	agent, name := shared.policed(t)
	shared.reaches(t, shared.run(t, agent, "How are you?"), "succeeded")
	v := visit(t, shared, look{})
	p := v.signedIn(shared.person(t, "member"), "/console/usage")
	p.heading("Usage")
	totals := p.byRole("list", "Totals")
	visible(t, totals.GetByText("tokens in"))
	day := p.figure("Tokens by day")
	visible(t, day.GetByRole("img"))
	must(t, inside(day, "button", "Show as table").Click())
	rows := day.Locator("tbody tr")
	must(t, expect.Locator(rows).ToHaveCount(30))
	must(t, expect.Locator(rows.Last().Locator("th")).ToHaveText(time.Now().UTC().Format("2006-01-02")))
	must(t, expect.Locator(rows.Last().Locator("td").First()).Not().ToHaveText("0"))
	for _, caption := range []string{"Cost by day", "Time to first token", "Duration of runs", "Approvals by time to decision", "Webhook deliveries"} {
		visible(t, p.figure(caption))
	}
	first := p.figure("Time to first token")
	must(t, inside(first, "button", "Show as table").Click())
	must(t, expect.Locator(first.Locator("tbody tr").Last().Locator("td").First()).ToHaveText(regexp.MustCompile(` (ms|s)$`)))
	// A day leads to its runs.
	must(t, first.Locator("tbody tr").Last().GetByRole("link").Click())
	p.heading("Runs")
	visible(t, p.byRole("table", "Runs").Locator("tbody tr").First())
	p.back()
	p.heading("Usage")
	// Groups are in the address, a reload keeps them, the default is left out.
	_, err := p.GetByLabel("Group").SelectOption(playwright.SelectOptionValues{Values: &[]string{"agent"}})
	must(t, err)
	hasURL(t, p, `/console/usage\?group=agent$`)
	// The picture shows the first twelve, the table all.
	listed := func(caption string) {
		t.Helper()
		must(t, inside(p.figure(caption), "button", "Show as table").Click())
		visible(t, p.figure(caption).GetByRole("table").GetByText(name, playwright.LocatorGetByTextOptions{Exact: playwright.Bool(true)}))
	}
	listed("Cost by agent")
	p.reload()
	listed("Tokens by agent")
	p.goTo("/console/usage?group=model")
	visible(t, p.figure("Tokens by model").GetByText("sim-1"))
	p.goTo("/console/usage?group=nonsense")
	visible(t, p.figure("Cost by day"))
	// Two days or less are shown by the hour.
	p.goTo("/console/usage?from=" + url.QueryEscape(time.Now().Add(-6*time.Hour).UTC().Format(time.RFC3339)))
	visible(t, p.figure("Duration of runs"))
	must(t, inside(p.figure("Duration of runs"), "button", "Show as table").Click())
	visible(t, p.figure("Duration of runs").GetByRole("columnheader", named0("Hour")))
	p.goTo("/console/usage?from=2001-01-01T00:00:00Z&to=2001-01-02T00:00:00Z")
	visible(t, p.GetByText("Nothing fits these filters"))
	must(t, p.button("Clear filters").First().Click())
	hasURL(t, p, `/console/usage$`)
	visible(t, p.figure("Cost by day"))
}

// What ends elsewhere shows within two seconds; what could not be read is never 0.
func TestUsageIsLiveAndFails(t *testing.T) {
	t.Parallel()
	s := own(t)
	v := visit(t, s, look{})
	p := v.signedIn(s.person(t, "member"), "/console/usage")
	p.heading("Usage")
	visible(t, p.GetByText("No usage yet"))
	s.reaches(t, s.run(t, s.agent, "How are you?"), "succeeded")
	visible(t, p.byRole("list", "Totals"))
	gone(t, p.GetByText("No usage yet"))

	q := v.tab()
	down := true
	q.answered(`/v1/usage\?`, func(url.Values) (int, any) {
		if down {
			return 500, object{"type": "about:blank", "title": "Internal error", "status": 500, "code": "INTERNAL", "detail": "It broke."}
		}
		return 200, object{"items": []object{{"day": time.Now().UTC().Format("2006-01-02"), "runs": 1, "tokens_in": 3, "tokens_out": 4, "cost_usd": 0.5, "browser_skill_runs": 0}}}
	})
	q.goTo("/console/usage")
	alert := q.GetByRole("alert")
	must(t, expect.Locator(alert).ToContainText("Internal error"))
	must(t, expect.Locator(alert).ToContainText("req-of-the-test"))
	gone(t, q.byRole("list", "Totals"))
	gone(t, q.GetByText("No usage yet"))
	down = false
	must(t, alert.GetByRole("button", named0("Try again")).Click())
	visible(t, q.byRole("list", "Totals").GetByText("$0.5000"))
}

// month is made up: a service of this test has no past.
func (p *tab) month() {
	today := time.Now().UTC().Truncate(24 * time.Hour)
	wave := func(i, n int) float64 { return float64((i*i*7+i*13)%n) / float64(n) }
	p.answered(`/v1/usage\?`, func(q url.Values) (int, any) {
		items := []object{}
		for i := range 30 {
			row := object{"runs": 200 + i, "tokens_in": 40_000 + int(wave(i, 31)*90_000), "tokens_out": 9_000 + int(wave(i, 23)*30_000), "cost_usd": 0.4 + wave(i, 29)*2.2, "browser_skill_runs": i % 3}
			switch q.Get("group_by") {
			case "agent":
				row["agent_id"] = p.s.agent
				if i > 0 {
					row["agent_id"] = nil
				}
			case "model":
				row["model"] = []string{"sim-1", "<img src=x onerror=alert(1)>", "gpt‮-4", ""}[i%4] + map[bool]string{true: fmt.Sprintf(" %d", i)}[i > 3]
			case "kind":
				row["kind"] = []string{"llm", "embedding", "browser_skill_run"}[i%3]
			default:
				row["day"] = today.AddDate(0, 0, -i).Format("2006-01-02")
			}
			if items = append(items, row); q.Get("group_by") == "kind" && i == 2 || q.Get("group_by") == "agent" && i == 1 {
				break
			}
		}
		return 200, object{"items": items}
	})
	p.answered(`/v1/stats\?`, func(url.Values) (int, any) {
		items := []object{}
		for i := range 30 {
			item := object{"at": today.AddDate(0, 0, i-29).Format(time.RFC3339), "runs": object{"succeeded": 180 + i, "failed": i % 7, "cancelled": i % 3}, "duration_ms": object{"p50": 2200 + wave(i, 19)*900, "p95": 7000 + wave(i, 17)*5000},
				"first_token_ms": object{"p50": 380 + wave(i, 13)*160, "p95": 900 + wave(i, 11)*900}, "decision_s": object{"p50": 60 + wave(i, 7)*120, "p95": 600 + wave(i, 29)*2500},
				"approvals": object{"requested": 12, "decided": 11, "expired": 1}, "deliveries": object{"succeeded": 150 + int(wave(i, 23)*80), "failed": i % 5}, "tokens_in": 1, "tokens_out": 1, "cost_usd": 1}
			if i == 8 || i == 20 {
				item["decision_s"] = nil
			}
			if i == 19 {
				item["decision_s"], item["first_token_ms"] = object{"p50": 90, "p95": 200}, nil
			}
			if i == 18 {
				item["decision_s"] = nil
			}
			items = append(items, item)
		}
		return 200, object{"items": items}
	})
}

func TestTheTourOfUsage(t *testing.T) {
	email := shared.person(t, "member")
	for name, l := range map[string]look{"light": {}, "dark": {dark: true}, "a phone": {width: 360, height: 740}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := visit(t, shared, l)
			p := v.signedIn(email, "/console/")
			p.month()
			for _, path := range []string{"usage", "usage?group=model", "usage?group=agent", "usage?group=kind"} {
				p.goTo("/console/" + path)
				visible(t, p.figure("Cost by"))
				visible(t, p.figure("Webhook deliveries"))
				p.accessible(path + " in " + name)
				wide, err := p.Evaluate("document.documentElement.scrollWidth - innerWidth")
				must(t, err)
				if wide.(int) > 0 {
					t.Errorf("%s scrolls sideways by %v", path, wide)
				}
			}
			p.goTo("/console/usage")
			for _, caption := range []string{"Cost by day", "Time to first token"} {
				must(t, inside(p.figure(caption), "button", "Show as table").Click())
				visible(t, p.figure(caption).GetByRole("table"))
			}
			p.accessible("tables of usage in " + name)
		})
	}
}
