// @ts-check
// Question (S2): the gateway accepts and never answers. Do 20 buyers get an answer in time, are the next 50 refused at
// once and without a trace, and are the 20 settled when it is back, without a hand?
//
// paymentd: deploy/profiles/fail-fast.env (time-out 15 s, answer within 10 s, breaker 10 of 20, open for 30 s).
// Run:      k6 run hung-gateway.js                     about 70 s; TIMEOUT=15s ANSWER=10s OPEN=30s say what is set
// Read:     payment_latency{phase:hung} stays below ANSWER, {phase:refused} is milliseconds: theirs were 30 s and 0.5 s.
import { check } from 'k6';
import http from 'k6/http';
import { Counter } from 'k6/metrics';

import { always, begin, end, patience, verify } from './lib/money.js';
import { confirm, metrics, moves, newOrder } from './lib/paymentd.js';
import { after, seconds } from './lib/settings.js';
import { count, faults } from './lib/simulator.js';

const timeout = seconds('TIMEOUT', '15s');
const answer = seconds('ANSWER', '10s');
const open = seconds('OPEN', '30s');
const second = timeout + 2;
const back = second + 4;
const refused = new Counter('refused');

http.setResponseCallback(http.expectedStatuses(200, 202, 503));

/** @type {import('k6/options').Options} */
export const options = {
  ...patience,
  scenarios: {
    hung: { executor: 'per-vu-iterations', vus: 20, iterations: 1, exec: 'hung', maxDuration: after(timeout + 15) },
    refused: { executor: 'per-vu-iterations', vus: 50, iterations: 1, exec: 'turnedAway', startTime: after(second) },
    gateway: { executor: 'per-vu-iterations', vus: 1, iterations: 1, exec: 'comeBack', startTime: after(back) },
    buyers: {
      executor: 'constant-arrival-rate', rate: 2, timeUnit: '1s', duration: '12s', preAllocatedVUs: 10, maxVUs: 40,
      exec: 'buy', startTime: after(timeout + open + 2),
    },
  },
  thresholds: {
    ...always,
    http_req_failed: ['rate==0'],
    refused: ['count==50'],
    // The gateway's silence dominates.
    'payment_latency{phase:hung}': [`max<${(answer + 1) * 1000}`],
    // Theirs: refused within 0.5 s. Nobody waits for the gateway, so nobody comes near ANSWER.
    'payment_latency{phase:refused}': ['med<500', `max<${answer * 500}`],
    'payment_latency{phase:after}': ['max<10500'],
  },
};

export function setup() {
  return begin([{ op: 'confirm', hang: true }]);
}

/** @param {import('./lib/money.js').Run} run */
export function hung(run) {
  check(confirm(newOrder(run.run, 'hung'), { phase: 'hung' }), { 'hung: 202 PENDING': (a) => a.status === 202 && a.word === 'PENDING' });
}

/** @param {import('./lib/money.js').Run} run */
export function turnedAway(run) {
  const a = confirm(newOrder(run.run, 'refused'), { phase: 'refused' });
  check(a, {
    'refused: 503 pg_unavailable': (x) => x.status === 503 && x.word === 'pg_unavailable',
    'refused: says when to come back': (x) => Number(x.retryAfter) > 0,
    'refused: says what it knows of earlier calls': (x) => x.body?.earlier === 'none' || x.body?.earlier === 'unknown',
  });
  refused.add(a.word === 'pg_unavailable' ? 1 : 0);
}

/** @param {import('./lib/money.js').Run} run */
export function comeBack(run) {
  const there = count('confirm');
  check(there, {
    // One more was the first payment of setup.
    'the refused never reached the gateway': (n) => n.calls === 21,
    'nothing was given back': () => count('cancel').calls === 0,
  });
  const now = metrics();
  check(moves(now, 'closed', 'open') - moves(run.base, 'closed', 'open'), { 'the breaker opened once': (n) => n === 1 });
  faults([]);
}

/** @param {import('./lib/money.js').Run} run */
export function buy(run) {
  const order = newOrder(run.run, 'after');
  const a = confirm(order, { phase: 'after' });
  check(a, { 'after: 200, or not yet': (x) => x.status === 200 || (x.status === 503 && x.word === 'pg_unavailable') });
  verify(order, a);
}

/** @param {import('./lib/money.js').Run} run */
export function teardown(run) {
  end(run, { within: 90 });
  const now = metrics();
  check(moves(now, 'half_open', 'closed') - moves(run.base, 'half_open', 'closed'), { 'the breaker closed again': (n) => n === 1 });
}
