// @ts-check
// Question (S8): the gateway takes 0.3 s. Does the throughput follow the number of buyers ÷ 0.3 s, up to where?
//
// paymentd: deploy/profiles/default.env with PAYMENTD_RATE_LIMIT=0 PAYMENTD_BULKHEAD=0 PAYMENTD_MEMBER_LIMIT=0.
// Run:      k6 run capacity.js                         DURATION=20s per step, STEPS=50,100,200,300 GATEWAY=300ms
// Read:     the table at the end. The knee is the first step whose share of the ideal falls; below it p95 is hardly
//           above the gateway's. k6 takes its own part of the CPU: for figures to publish put it on another machine.
//           Only every 20th PAID is looked up at the gateway at once; all are compared at the end.
import { check } from 'k6';
import exec from 'k6/execution';
import { Counter } from 'k6/metrics';

import { always, begin, end, patience, verify } from './lib/money.js';
import { confirm, newOrder } from './lib/paymentd.js';
import { after, seconds } from './lib/settings.js';

const gateway = seconds('GATEWAY', '300ms');
const each = seconds('DURATION', '20s');
const gap = 2;
const steps = (__ENV.STEPS || '50,100,200,300').split(',').map(Number);
const paid = new Counter('paid');

/** @type {Record<string, import('k6/options').Scenario>} */
const scenarios = {};
/** @type {Record<string, string[]>} */
const perStep = {};
let start = 0;
for (const vus of steps) {
  scenarios[`vus_${vus}`] = {
    executor: 'constant-vus', vus, duration: after(each), startTime: after(start), tags: { step: String(vus) },
  };
  perStep[`paid{step:${vus}}`] = ['count>0'];
  // Where the knee is depends on the machine and is only reported; nobody waits longer than ANSWER_WITHIN.
  perStep[`payment_latency{step:${vus}}`] = [`min>=${gateway * 1000}`, 'max<10500'];
  start += each + gap;
}

/** @type {import('k6/options').Options} */
export const options = {
  ...patience,
  scenarios,
  thresholds: { ...always, http_req_failed: ['rate==0'], ...perStep },
  summaryTrendStats: ['min', 'med', 'p(95)', 'p(99)', 'max'],
};

export function setup() {
  return begin([{ op: 'confirm', latency: after(gateway) }]);
}

/** @param {import('./lib/money.js').Run} run */
export default function (run) {
  const order = newOrder(run.run);
  const a = confirm(order);
  check(a, { '200 PAID': (x) => x.status === 200 && x.word === 'PAID' });
  paid.add(a.status === 200 ? 1 : 0);
  if (exec.scenario.iterationInTest % 20 === 0) {
    verify(order, a);
  }
}

/** @param {import('./lib/money.js').Run} run */
export function teardown(run) {
  end(run, { sample: 1000 });
}

/**
 * A table and the thresholds, in place of k6's own summary.
 *
 * @param {{metrics: Record<string, {values: Record<string, number>, thresholds?: Record<string, {ok: boolean}>}>}} data
 */
export function handleSummary(data) {
  const lines = ['', 'buyers |   paid | per s | ideal | share | p50 ms | p95 ms | p99 ms'];
  for (const vus of steps) {
    const n = data.metrics[`paid{step:${vus}}`]?.values.count ?? 0;
    const took = data.metrics[`payment_latency{step:${vus}}`]?.values ?? {};
    // The last answers of a step come after its end.
    const perSecond = n / (each + gateway);
    const ideal = vus / gateway;
    const cells = [n, perSecond.toFixed(0), ideal.toFixed(0), `${((100 * perSecond) / ideal).toFixed(0)} %`];
    const times = ['med', 'p(95)', 'p(99)'].map((q) => (took[q] ?? 0).toFixed(0));
    const widths = [6, 5, 5, 5, 6, 6, 6];
    lines.push([String(vus).padStart(6), ...[...cells, ...times].map((c, i) => String(c).padStart(widths[i] ?? 6))].join(' | '));
  }
  lines.push('');
  for (const [name, m] of Object.entries(data.metrics)) {
    for (const [rule, result] of Object.entries(m.thresholds ?? {})) {
      lines.push(`${result.ok ? 'ok    ' : 'FAILED'} ${name} ${rule}`);
    }
  }
  return { stdout: lines.join('\n') + '\n' };
}
