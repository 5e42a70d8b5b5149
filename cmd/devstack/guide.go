package main

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
)

// guide prints lines that can be pasted into another terminal as they are.
func (s *stack) guide(out io.Writer) {
	next := newPayment()
	r := strings.NewReplacer(
		"{public}", "http://"+s.public, "{private}", "http://"+s.private, "{control}", "http://"+s.control+"/control",
		"{checkout}", checkoutKey, "{operator}", operatorKey, "{dsn}", s.postgres.DSN(database),
		"{key}", s.confirmed.PaymentKey, "{order}", s.confirmed.OrderID, "{amount}", fmt.Sprint(s.confirmed.Amount),
		"{nextkey}", next.PaymentKey, "{nextorder}", next.OrderID,
		"{paymentd}", filepath.Join(s.bins, "paymentd"), "{settings}", "'"+strings.Join(s.settings(), "' \\\n  '")+"'",
	)
	logs := "logs        " + s.log("paymentd") + "\n            " + s.log("tosssim") + "\n            " + s.postgres.Log()
	if s.verbose {
		logs = "logs        here, and " + s.postgres.Log()
	}
	fmt.Fprint(out, r.Replace(guideText), "\n", logs, "\n\nCtrl-C stops everything.\n")
}

const guideText = `
Go on from another terminal

# The same payment again: the same answer, no second charge (Idempotent-Replayed: true).
curl -i {public}/payments/confirm -H 'Authorization: Bearer {checkout}' \
  -H 'Content-Type: application/json' -d '{"paymentKey":"{key}","orderId":"{order}","amount":{amount}}'

# Read it, with its history for operators.
curl -s {public}/payments/{order} -H 'Authorization: Bearer {checkout}'
curl -s '{public}/payments/{order}?events=true' -H 'Authorization: Bearer {operator}'

# Give a part back, then the rest. The same Idempotency-Key again gives nothing back twice.
curl -s {public}/payments/{order}/cancel -H 'Authorization: Bearer {operator}' -H 'Content-Type: application/json' \
  -H 'Idempotency-Key: part-1' -d '{"amount":5000,"reason":"one article is sold out"}'
curl -s {public}/payments/{order}/cancel -H 'Authorization: Bearer {operator}' -H 'Content-Type: application/json' \
  -H 'Idempotency-Key: rest-1' -d '{"reason":"the buyer sent all back"}'

# The gateway hangs: the next confirm reaches it and gets no answer. paymentd answers 202 in time and does not guess.
curl -s {control}/faults -d '[{"op":"confirm","hang":true,"work":"do"}]'
curl -i {public}/payments/confirm -H 'Authorization: Bearer {checkout}' \
  -H 'Content-Type: application/json' -d '{"paymentKey":"{nextkey}","orderId":"{nextorder}","amount":{amount}}'

# The gateway is well again: recovery settles what is open by itself. Sync does it when asked, but answers in_progress
# as long as the call that hangs holds the payment: up to 15 s (TOSS_CONFIRM_TIMEOUT). Then ask again.
curl -s -X DELETE {control}/faults
curl -s {public}/payments/sync -H 'Authorization: Bearer {operator}' -H 'Content-Type: application/json' -d '{}'
curl -s {public}/payments/{nextorder} -H 'Authorization: Bearer {checkout}'

# The gateway is gone: after some failures the breaker opens, and the rest is answered 503 without a try.
curl -s {control}/listen -d '{"up":false}'
for i in 1 2 3 4 5 6 7 8 9 10 11 12; do
  curl -s -o /dev/null -w '%{http_code} after %{time_total} s\n' {public}/payments/confirm -H 'Authorization: Bearer {checkout}' \
    -H 'Content-Type: application/json' -d '{"paymentKey":"{nextkey}_'$i'","orderId":"{nextorder}_'$i'","amount":{amount}}'
done
curl -s {private}/metrics | grep ^paymentd_breaker_state

# The gateway is back: after 30 s trials go out with the next confirms, and the breaker closes when they end well.
curl -s {control}/listen -d '{"up":true}'

# The breaker by hand: "open" keeps all confirms away, "none" lets trials decide.
curl -s {private}/breaker -H 'Authorization: Bearer {operator}' -H 'Content-Type: application/json' -d '{"force":"open"}'
curl -s {private}/breaker -H 'Authorization: Bearer {operator}' -H 'Content-Type: application/json' -d '{"force":"none"}'

# Toss took 15000 where the shop asked for 10000: 202, an incident, and nobody guesses. Your word ends it (1: its id).
curl -s {control}/payments -d '{"paymentKey":"pay_{nextkey}","orderId":"{nextorder}_m","amount":15000,"status":"DONE"}'
curl -i {public}/payments/confirm -H 'Authorization: Bearer {checkout}' \
  -H 'Content-Type: application/json' -d '{"paymentKey":"pay_{nextkey}","orderId":"{nextorder}_m","amount":10000}'
curl -s {public}/incidents -H 'Authorization: Bearer {operator}'
curl -s {public}/incidents/1/resolve -H 'Authorization: Bearer {operator}' -H 'Content-Type: application/json' \
  -d '{"note":"wrong price, agreed with the buyer","action":"give_back"}'

# The commands, on the same database and simulator.
export {settings}
{paymentd} healthcheck
{paymentd} sync --dry-run
{paymentd} notices list --state all
{paymentd} audit --from "$(TZ=Asia/Seoul date +%F)"

# Inside.
curl -s {private}/readyz
curl -s {private}/metrics | grep ^paymentd_
curl -s '{control}/ledger?summary=true'
curl -s {control}/          # everything else the simulator can be told
psql '{dsn}'

public      {public}   specification {public}/openapi.yaml
private     {private}   /readyz /metrics /debug/pprof
simulator   {control}
keys        checkout {checkout}
            operator {operator}`
