// @ts-check
// Question (S3): the gateway's process is gone from 15 s to 30 s of 127 s. Does the breaker open, try, close, is no
// buyer refused, and is every payment of the outage paid afterwards?
//
// paymentd: deploy/profiles/connect-only-pending.env (breaker 5 of 10, open for 10 s, three trials, policy pending).
// Run:      k6 run breaker-lifecycle.js                RATE=2.83 DURATION=127s DOWN=15s UP=30s
// Read:     cb_open_responses: confirms saved as PENDING (202) instead of being refused; cb_recovery_responses: confirms
//           that were PAID after the gateway had come back; payment_latency, by word: PENDING is fast once it is open.
//           Theirs: 90, 270, 90 ms while open against 252 ms, and the 90 waited for ever.
import { check } from 'k6';
import exec from 'k6/execution';
import { Counter } from 'k6/metrics';

import { always, begin, end, patience, verify } from './lib/money.js';
import { confirm, metrics, moves, newOrder, read } from './lib/paymentd.js';
import { after, number, seconds } from './lib/settings.js';
import { listen } from './lib/simulator.js';

const rate = number('RATE', 2.83);
const duration = seconds('DURATION', '127s');
const down = seconds('DOWN', '15s');
const up = seconds('UP', '30s');
const openResponses = new Counter('cb_open_responses');
const recoveryResponses = new Counter('cb_recovery_responses');

/** @type {import('k6/options').Options} */
export const options = {
  ...patience,
  scenarios: {
    buyers: {
      executor: 'constant-arrival-rate', rate: Math.max(1, Math.round(rate * 60)), timeUnit: '1m', duration: after(duration),
      preAllocatedVUs: Math.ceil(rate * 5) + 5, maxVUs: Math.ceil(rate * 15) + 20,
    },
    kill: { executor: 'per-vu-iterations', vus: 1, iterations: 1, exec: 'kill', startTime: after(down) },
    start: { executor: 'per-vu-iterations', vus: 1, iterations: 1, exec: 'start', startTime: after(up) },
  },
  thresholds: {
    ...always,
    http_req_failed: ['rate==0'],
    dropped_iterations: ['count==0'],
    cb_open_responses: ['count>0'],
    cb_recovery_responses: ['count>0'],
    payment_latency: ['max<10500'],
    'payment_latency{word:PAID}': ['med>=100'],
    // While it is open most answers are faster than the fastest that the gateway can give.
    'payment_latency{phase:open}': ['med<100'],
  },
};

export function setup() {
  return begin([{ op: '*', latency: { min: '100ms', max: '300ms' } }]);
}

/** @param {import('./lib/money.js').Run} run */
export default function (run) {
  const at = (Date.now() - exec.scenario.startTime) / 1000;
  // It opens about 2 s after the end of the gateway.
  const phase = at < down ? 'before' : at < down + 3 ? 'opening' : at < up ? 'open' : 'after';
  const order = newOrder(run.run);
  const a = confirm(order, { phase });
  check(a, { 'confirm: 200 PAID or 202 PENDING': (x) => (x.status === 200 && x.word === 'PAID') || (x.status === 202 && x.word === 'PENDING') });
  if (a.status === 202) {
    openResponses.add(1);
  } else if (a.status === 200 && at >= up) {
    recoveryResponses.add(1);
  }
  if (a.status === 200) {
    verify(order, a);
  }
  check(read(order.orderId), { 'read: 200': (x) => x.status === 200 });
}

export function kill() {
  listen(false);
  console.log('the gateway is gone');
}

export function start() {
  listen(true);
  console.log('the gateway is back');
}

/** @param {import('./lib/money.js').Run} run */
export function teardown(run) {
  // All of the outage are paid within 30 s of the closing; a scrape may be 2 s old.
  end(run, { within: 35 });
  const now = metrics();
  /** @type {(from: string, to: string) => number} */
  const moved = (from, to) => moves(now, from, to) - moves(run.base, from, to);
  console.log(
    `breaker: closed→open ${moved('closed', 'open')}, open→half_open ${moved('open', 'half_open')}, ` +
      `half_open→open ${moved('half_open', 'open')}, half_open→closed ${moved('half_open', 'closed')}`,
  );
  check(now, {
    'it opened once': () => moved('closed', 'open') === 1,
    'it closed once': () => moved('half_open', 'closed') === 1,
    'every open phase ended in trials': () => moved('open', 'half_open') === moved('half_open', 'open') + 1,
  });
}
