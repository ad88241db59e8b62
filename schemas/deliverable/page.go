package deliverable

import (
	"bytes"
	"context"
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
)

// style is the page's whole appearance: it names no address.
const style = `:root{color-scheme:light}
*{box-sizing:border-box}
body{margin:0 auto;max-width:52rem;padding:2.5rem 1.5rem;font:16px/1.6 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif;color:#1a1d21;background:#fff;overflow-wrap:break-word}
h1,h2,h3,h4,h5,h6{line-height:1.25;margin:1.8em 0 .6em;break-after:avoid}
h1{font-size:2rem;margin-top:0}h2{font-size:1.5rem;border-bottom:1px solid #d9dee5;padding-bottom:.25em}h3{font-size:1.2rem}
p,ul,ol,pre,blockquote,figure,.table{margin:0 0 1em}
ul,ol{padding-inline-start:1.6em}li{margin:.2em 0}
a{color:#0b57b8}
code,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.9em}
code{background:#f1f3f6;border-radius:3px;padding:.1em .3em}
pre{background:#f6f7f9;border:1px solid #e1e5ea;border-radius:6px;padding:.8em 1em;overflow-x:auto}pre code{background:none;padding:0;white-space:pre-wrap}
blockquote{border-inline-start:3px solid #c6ced8;margin-inline-start:0;padding-inline-start:1em;color:#4a525c}
hr{border:0;border-top:1px solid #d9dee5;margin:2em 0}
.table{overflow-x:auto}table{border-collapse:collapse;width:100%}
th,td{border:1px solid #d9dee5;padding:.4em .7em;text-align:start;vertical-align:top}th{background:#eef1f5}
.r{text-align:right}.c{text-align:center}.n{font-variant-numeric:tabular-nums}
figure svg{max-width:100%;height:auto}
@media print{@page{margin:2cm}body{max-width:none;padding:0;font-size:11pt}pre,tr,figure,blockquote{break-inside:avoid}thead{display:table-header-group}pre{overflow:visible}.table{overflow:visible}a{color:inherit}}
`

// policy is the page's own content security policy: it loads nothing, and posts nothing.
const policy = "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'"

type pageWriter struct {
	bytes.Buffer
	ctx   context.Context
	lists []bool // open lists: ordered or not
	quote int
}

// page makes a page that needs nothing but itself.
func page(ctx context.Context, d *doc) ([]byte, error) {
	w := &pageWriter{ctx: ctx}
	w.add("<!DOCTYPE html>\n<html>\n<head>\n<meta charset=\"utf-8\">\n<meta http-equiv=\"Content-Security-Policy\" content=\"", policy,
		"\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta name=\"referrer\" content=\"no-referrer\">\n<title>",
		html.EscapeString(d.title()), "</title>\n<style>\n", style, "</style>\n</head>\n<body>\n<main dir=\"auto\">\n")
	for i := range d.blocks {
		if i%256 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if w.Len() > MaxOutput {
			break // Render says so
		}
		if err := w.block(&d.blocks[i]); err != nil {
			return nil, err
		}
	}
	w.within(0, false, 0)
	w.add("</main>\n</body>\n</html>\n")
	return w.Bytes(), nil
}

func (w *pageWriter) add(parts ...string) {
	for _, p := range parts {
		w.WriteString(p)
	}
}

// within closes and opens lists and quotations up to a depth.
func (w *pageWriter) within(depth int, ordered bool, quote int) {
	if quote != w.quote {
		w.lower(0)
		for ; w.quote > quote; w.quote-- {
			w.add("</blockquote>\n")
		}
		for ; w.quote < quote; w.quote++ {
			w.add("<blockquote>\n")
		}
	}
	w.lower(depth)
	for len(w.lists) < depth {
		w.lists = append(w.lists, ordered)
		if ordered {
			w.add("<ol>\n")
		} else {
			w.add("<ul>\n")
		}
		if len(w.lists) < depth {
			w.add("<li>") // a level that the text leaves out
		}
	}
}

// lower closes lists until depth are open.
func (w *pageWriter) lower(depth int) {
	for len(w.lists) > depth {
		n := len(w.lists) - 1
		if w.lists[n] {
			w.add("</li>\n</ol>\n")
		} else {
			w.add("</li>\n</ul>\n")
		}
		w.lists = w.lists[:n]
	}
}

func (w *pageWriter) block(b *block) error {
	if b.kind == item {
		w.item(b)
		return nil
	}
	depth := min(b.depth, len(w.lists))
	if b.quote != w.quote {
		depth = 0
	}
	w.within(depth, false, b.quote)
	switch b.kind {
	case paragraph:
		w.add("<p dir=\"auto\">")
		w.inline(b.text)
		w.add("</p>\n")
	case heading:
		n := strconv.Itoa(b.level)
		w.add("<h", n, " dir=\"auto\">")
		w.inline(b.text)
		w.add("</h", n, ">\n")
	case code:
		w.add("<pre dir=\"ltr\"><code>", html.EscapeString(b.text), "</code></pre>\n")
	case rule:
		w.add("<hr>\n")
	case table:
		return w.table(b)
	}
	return nil
}

func (w *pageWriter) item(b *block) {
	before := len(w.lists)
	switch {
	case b.quote != w.quote:
		before = 0
	case before >= b.depth && w.lists[b.depth-1] != b.ordered: // another list at the same place
		w.lower(b.depth - 1)
		before = b.depth - 1
	}
	w.within(b.depth, b.ordered, b.quote)
	if before >= b.depth {
		w.add("</li>\n")
	}
	if b.ordered {
		w.add("<li dir=\"auto\" value=\"", strconv.Itoa(b.number), "\">")
	} else {
		w.add("<li dir=\"auto\">")
	}
	w.inline(b.text)
}

func (w *pageWriter) inline(src string) {
	for _, s := range inline(src) {
		tags := make([]string, 0, 5)
		open := func(tag, attributes string) {
			w.add("<", tag, attributes, ">")
			tags = append(tags, tag)
		}
		if s.link != "" {
			open("a", ` href="`+html.EscapeString(s.link)+`" rel="noopener noreferrer nofollow"`)
		}
		if s.bold {
			open("strong", "")
		}
		if s.italic {
			open("em", "")
		}
		if s.strike {
			open("del", "")
		}
		if s.code {
			open("code", "")
		}
		w.add(strings.ReplaceAll(html.EscapeString(s.text), "\n", "<br>"))
		for i := len(tags) - 1; i >= 0; i-- {
			w.add("</", tags[i], ">")
		}
	}
}

func (w *pageWriter) table(b *block) error {
	header, rows := b.values()
	if d := b.drawing(header, rows); d != nil {
		w.add("<figure>")
		w.draw(d)
		w.add("</figure>\n")
	}
	class := make([]string, len(header))
	for i, a := range b.align {
		if a == 'r' || a == 'c' {
			class[i] = ` class="` + string(rune(a)) + `"`
		}
	}
	w.add("<div class=\"table\"><table dir=\"auto\">\n<thead><tr>")
	for i, src := range b.rows[0] {
		w.add("<th", class[i], ">")
		w.inline(src)
		w.add("</th>")
	}
	w.add("</tr></thead>\n<tbody>\n")
	for r, row := range b.rows[1:] {
		if r%256 == 0 && w.ctx.Err() != nil {
			return w.ctx.Err()
		}
		w.add("<tr>")
		for i, src := range row {
			at := class[i]
			if _, number := rows[r][i].data.(float64); number && at == "" && b.align[i] == 0 {
				at = ` class="r n"`
			}
			w.add("<td", at, ">")
			w.inline(src)
			w.add("</td>")
		}
		w.add("</tr>\n")
		if w.Len() > MaxOutput {
			break
		}
	}
	w.add("</tbody>\n</table></div>\n")
	return nil
}

// colors are those of the series, in all kinds of files.
var colors = [maxSeries]string{"3B6FB6", "E08A2E", "4C9A62", "C4524B", "7C65B0", "8A6D4F", "D178AE", "6B7280"}

// The drawing's size and the space around its axes, in pixels.
const (
	chartWidth, chartHeight = 720, 380
	chartLeft, chartBottom  = 70, 60
	chartTop, chartRight    = 40, 15
)

func px(n float64) string { return strconv.FormatFloat(math.Round(n*10)/10, 'f', -1, 64) }

// draw writes a chart as SVG, by attributes only.
func (w *pageWriter) draw(d *drawing) {
	w.add(fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 %d %d" width="%d" font-family="sans-serif" font-size="12">`,
		chartWidth, chartHeight, chartWidth))
	if d.kind == pieChart {
		w.pie(d)
	} else {
		w.axes(d)
	}
	w.add("</svg>")
}

func (w *pageWriter) label(x, y float64, anchor, text string) {
	w.add(`<text x="`, px(x), `" y="`, px(y), `" text-anchor="`, anchor, `" fill="#333">`, html.EscapeString(text), "</text>")
}

func (w *pageWriter) box(x, y, width, height float64, color, hint string) {
	w.add(`<rect x="`, px(x), `" y="`, px(y), `" width="`, px(width), `" height="`, px(height), `" fill="#`, color, `"><title>`, html.EscapeString(hint), "</title></rect>")
}

func (w *pageWriter) legend(names []string) {
	x := 10.0
	for i, name := range names {
		if x > chartWidth-80 {
			break
		}
		w.box(x, 10, 10, 10, colors[i%maxSeries], name)
		name = cutRunes(name, 24)
		w.label(x+15, 20, "start", name)
		x += 30 + 7*float64(len([]rune(name)))
	}
}

// scale returns the ends of the axis of values and the distance of its lines: at most ten.
func (d *drawing) scale() (low, high, step float64) {
	for _, s := range d.series {
		for _, n := range s.values {
			low, high = math.Min(low, n), math.Max(high, n)
		}
	}
	if low == high {
		high = low + 1
	}
	step = math.Pow(10, math.Floor(math.Log10((high-low)/5)))
	for _, by := range []float64{1, 2, 5, 10} {
		if (high-low)/(step*by) <= 6 {
			step *= by
			break
		}
	}
	return math.Floor(low/step) * step, math.Ceil(high/step) * step, step
}

func (w *pageWriter) axes(d *drawing) {
	low, high, step := d.scale()
	names := make([]string, len(d.series))
	for i, s := range d.series {
		names[i] = s.name
	}
	w.legend(names)
	across, up := float64(chartWidth-chartLeft-chartRight), float64(chartHeight-chartTop-chartBottom)
	lying := d.kind == barChart
	// at returns the distance of a value from the start of its axis.
	at := func(n float64) float64 {
		if lying {
			return chartLeft + (n-low)/(high-low)*across
		}
		return chartTop + (high-n)/(high-low)*up
	}
	for i := 0; i <= 12; i++ {
		n := low + float64(i)*step
		if n > high+step/2 {
			break
		}
		p, text := px(at(n)), strconv.FormatFloat(n, 'g', 6, 64)
		if lying {
			w.add(`<line x1="`, p, `" x2="`, p, `" y1="`, px(chartTop), `" y2="`, px(chartTop+up), `" stroke="#ddd"/>`)
			w.label(at(n), chartTop+up+16, "middle", text)
		} else {
			w.add(`<line x1="`, px(chartLeft), `" x2="`, px(chartLeft+across), `" y1="`, p, `" y2="`, p, `" stroke="#ddd"/>`)
			w.label(chartLeft-6, at(n)+4, "end", text)
		}
	}
	size := across
	if lying {
		size = up
	}
	slot := size / float64(len(d.categories))
	every := max(1, len(d.categories)/12)
	for i, c := range d.categories {
		if i%every != 0 {
			continue
		}
		middle := (float64(i) + .5) * slot
		if lying {
			w.label(chartLeft-6, chartTop+middle+4, "end", cutRunes(c, 10))
		} else {
			w.label(chartLeft+middle, chartTop+up+16, "middle", cutRunes(c, max(3, int(slot*float64(every)/7))))
		}
	}
	for s, one := range d.series {
		if d.kind == lineChart {
			w.line(d, s, at, slot)
			continue
		}
		thick := slot * .8 / float64(len(d.series))
		for i, n := range one.values {
			if !one.has[i] {
				continue
			}
			from := float64(i)*slot + slot*.1 + float64(s)*thick
			a, b := math.Min(at(n), at(0)), math.Abs(at(n)-at(0))
			hint := d.categories[i] + ": " + strconv.FormatFloat(n, 'g', -1, 64)
			if lying {
				w.box(a, chartTop+from, b, thick, colors[s], hint)
			} else {
				w.box(chartLeft+from, a, thick, b, colors[s], hint)
			}
		}
	}
}

func (w *pageWriter) line(d *drawing, s int, at func(float64) float64, slot float64) {
	w.add(`<polyline fill="none" stroke-width="2" stroke="#`, colors[s], `" points="`)
	for i, n := range d.series[s].values {
		if d.series[s].has[i] {
			w.add(px(chartLeft+(float64(i)+.5)*slot), ",", px(at(n)), " ")
		}
	}
	w.add(`"/>`)
}

func (w *pageWriter) pie(d *drawing) {
	s := d.series[0]
	total := 0.0
	for _, n := range s.values {
		total += n
	}
	w.legend(d.categories)
	if total <= 0 {
		return
	}
	const x, y, r = chartWidth / 2, chartHeight/2 + 15, 150
	from := 0.0
	for i, n := range s.values {
		if n <= 0 {
			continue
		}
		to := from + n/total
		color, hint := colors[i%maxSeries], html.EscapeString(d.categories[i]+": "+strconv.FormatFloat(n, 'g', -1, 64))
		if n == total {
			w.add(fmt.Sprintf(`<circle cx="%d" cy="%d" r="%d" fill="#%s"><title>%s</title></circle>`, x, y, r, color, hint))
			return
		}
		point := func(part float64) string {
			sin, cos := math.Sincos(2 * math.Pi * part)
			return px(x+r*sin) + " " + px(y-r*cos)
		}
		large := "0"
		if to-from > .5 {
			large = "1"
		}
		w.add(fmt.Sprintf(`<path d="M%d %d L%s A%d %d 0 %s 1 %s Z" fill="#%s" stroke="#fff"><title>%s</title></path>`, x, y, point(from), r, r, large, point(to), color, hint))
		from = to
	}
}
