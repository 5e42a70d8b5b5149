// @ts-check
// Question (S5): do bulkhead and limiter hold against a burst of 100 and then 80 per second, are the others refused at
// once, does the breaker stay out of it, and do reads not notice?
//
// paymentd: deploy/profiles/layered.env (20 at once, 30 per second after a burst of 20, nobody queues).
// Run:      k6 run limits.js                           RATE=80 DURATION=10s; SLOTS=20 BURST=20 LIMIT=30 say what is set
// Read:     paid against refused; payment_latency{word:busy} is milliseconds, {phase:burst} the gateway's 5 s.
import { check, sleep } from 'k6';
import http from 'k6/http';
import { Counter, Trend } from 'k6/metrics';

import { always, begin, end, patience, verify } from './lib/money.js';
import { confirm, metrics, moves, newOrder, read, sum } from './lib/paymentd.js';
import { after, number, seconds } from './lib/settings.js';
import { confirmTimes, count, faults } from './lib/simulator.js';

const slots = number('SLOTS', 20);
const burst = number('BURST', 20);
const limit = number('LIMIT', 30);
const rate = number('RATE', 80);
const duration = seconds('DURATION', '10s');
const slow = 5;
const second = slow + 3;
/** How much closer than at their sending two calls may arrive at the gateway on a busy machine. */
const jitter = 0.5;

const paid = new Counter('paid');
const busy = new Counter('busy');
const readLatency = new Trend('read_latency', true);

http.setResponseCallback(http.expectedStatuses(200, 503));

/** @type {import('k6/options').Options} */
export const options = {
  ...patience,
  scenarios: {
    burst: { executor: 'per-vu-iterations', vus: 100, iterations: 1, exec: 'rush', maxDuration: '30s' },
    faster: { executor: 'per-vu-iterations', vus: 1, iterations: 1, exec: 'faster', startTime: after(second - 1) },
    rate: {
      executor: 'constant-arrival-rate', rate: Math.round(rate), timeUnit: '1s', duration: after(duration), startTime: after(second),
      preAllocatedVUs: Math.ceil(rate), maxVUs: Math.ceil(rate * 4), exec: 'steady',
    },
    reads: { executor: 'constant-vus', vus: 1, duration: after(second + duration), exec: 'reads' },
  },
  thresholds: {
    ...always,
    http_req_failed: ['rate==0'],
    busy: ['count>0'],
    paid: [`count>=${slots}`],
    // Refused at once: before the gateway, which takes 5 s, has answered anybody.
    'payment_latency{word:busy}': [`max<${slow * 1000}`, `med<${slow * 200}`],
    read_latency: [`max<${slow * 1000}`, 'med<100'],
  },
};

export function setup() {
  return begin([{ op: 'confirm', latency: after(slow) }]);
}

/**
 * @param {import('./lib/money.js').Run} run
 * @param {string} phase
 */
function pay(run, phase) {
  const order = newOrder(run.run);
  const a = confirm(order, { phase });
  check(a, {
    '200 PAID or 503 busy': (x) => (x.status === 200 && x.word === 'PAID') || (x.status === 503 && x.word === 'busy'),
    'a refusal says when to come back': (x) => x.status !== 503 || Number(x.retryAfter) > 0,
  });
  (a.status === 200 ? paid : busy).add(1);
  verify(order, a);
}

/** @param {import('./lib/money.js').Run} run */
export function rush(run) {
  pay(run, 'burst');
}

/** @param {import('./lib/money.js').Run} run */
export function steady(run) {
  pay(run, 'rate');
}

export function faster() {
  faults([{ op: 'confirm', latency: '100ms' }]);
}

/** @param {import('./lib/money.js').Run} run */
export function reads(run) {
  const a = read(run.known.orderId);
  readLatency.add(a.took);
  check(a, { 'read: 200 PAID': (x) => x.status === 200 && x.word === 'PAID' });
  sleep(0.05);
}

/** The most that any window of time was above burst + limit·t, in sends; 0 or less is well. */
function excess() {
  const at = confirmTimes().slice(1); // the first was setup's
  let most = -Infinity;
  for (const [i, from] of at.entries()) {
    for (const [j, to] of at.slice(i).entries()) {
      most = Math.max(most, j + 1 - (burst + limit * ((to - from) / 1000 + jitter)));
    }
  }
  return most;
}

/** @param {import('./lib/money.js').Run} run */
export function teardown(run) {
  const now = metrics();
  /** @type {(name: string, labels: Record<string, string>) => number} */
  const grown = (name, labels) => sum(now, name, labels) - sum(run.base, name, labels);
  const byLimiter = grown('paymentd_refused_total', { by: 'limiter' });
  const byBulkhead = grown('paymentd_refused_total', { by: 'bulkhead' });
  const there = count('confirm');
  console.log(`most at the gateway at once ${there.maxRunning} of ${slots}; refused by limiter ${byLimiter}, by bulkhead ${byBulkhead}`);
  check(there, { 'never more at the gateway than the bulkhead allows': (n) => n.maxRunning <= slots });
  check(excess(), { 'no window of time saw more sends than burst + rate·t': (n) => n <= 0 });
  check(now, {
    'both layers were at work': () => byLimiter > 0 && byBulkhead > 0,
    'the breaker counted no failure': () => grown('paymentd_breaker_results_total', { result: 'failure' }) === 0,
    'the breaker stayed closed': () => moves(now, 'closed', 'open') === moves(run.base, 'closed', 'open'),
    'nothing was retried': () => grown('paymentd_retry_sequences_total', {}) === 0,
  });
  end(run);
}
